"""A broker: requests in, answers out, and the tables that say who may do what.

In: decoded requests with the connection they came on.
Out: replies, and requests of the broker's own to clients.
Tables (topics, groups, offsets, clients, locks, stats) are pure: they take events and the time, never read a
clock or a file, and return what the caller has to do. `persist` saves them in the layout of Apache RocketMQ's
config files.
Invariants: one event loop thread owns every table; what a client is told was stored is in the store's hands.
May import `orbitmq.wire`, `orbitmq.net`, `orbitmq.store` and `orbitmq.config`.
"""
