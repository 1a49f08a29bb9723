"""Bytes at rest: the commit log, its consume queues and its key index, in Apache RocketMQ's layout.

In: encoded records, and questions (a range of a queue, a key, a time). Out: record bytes and offsets.

Invariants:
- `disk.py` (with `file_lock.py`) is the only module that touches files; faults are injected there.
- The commit log is the truth: queues, key index and checkpoint can be rebuilt from it.
- Files keep the layout and the sizes of Apache RocketMQ 4.9, so that either side opens the other's directory.
- Time is a parameter (`clock() -> epoch ms`); nothing here reads a clock by itself.

May import: `orbitmq.wire`.
"""
