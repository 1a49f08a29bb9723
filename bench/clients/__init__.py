"""Clients compared with each other: this project's asyncio client, aiokafka, nats-py, and the official Java client.

In:   nothing; `python -m bench.clients` starts a broker for each client and stops it, one after the other.
Out:  a table of throughput, client CPU per message and latency, and with `--docs` the same in `docs/performance.md`.

Each client runs in a process of its own, so that its CPU time can be told from that of anything else. Python clients
run on uvloop. Both OrbitMQ clients are measured against an OrbitMQ broker, the others against the broker they are for.
"""
