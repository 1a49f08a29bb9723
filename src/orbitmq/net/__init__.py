"""Sockets. asyncio lives here and in nobody else's decisions.

In: TCP bytes. Out: whole frames handed to a *service*, replies written back with as few system calls as possible.
Invariants: all frames of one read are handed over together and answered with one write; memory per connection is
bounded by one frame plus one write buffer; a connection that misbehaves is closed and harms nobody else.
Imports `orbitmq.wire` only.
"""
