"""Spark on topics compared: this project's source and store reader, and Spark's own Kafka connector.

In:   nothing; `python -m bench.spark` starts an OrbitMQ and a Kafka broker, fills both alike, and reads them.
Out:  a table of rows per second and per CPU second, of latencies and memory, and with `--docs` the same in
      `docs/performance.md`.

Each side has a Spark driver of its own, started anew in every round; they take turns. CPU is that of all processes a
driver has started, and beside it the CPU of the broker it reads from.
"""
