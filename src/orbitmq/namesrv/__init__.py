"""The name server: who serves which topic, told by the brokers, asked for by everybody.

In: registrations of brokers, lost connections, the passing of time. Out: routes, cluster and topic lists.
`routes` is a pure table taking (event, now); `service` speaks the protocol; `kv_config` keeps the small
key-value store that survives a restart, and is the one module here that touches files.
Invariants: name servers do not know each other; nothing about routes is stored, because every broker tells it
again every 30 s; a heartbeat that changes nothing costs nothing per topic.
Imports `orbitmq.wire` and `orbitmq.net` only.
"""
