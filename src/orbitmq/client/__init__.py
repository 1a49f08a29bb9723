"""The client's side of the protocol: find brokers, send, read, administer.

In:   a name server address list, and what a person or program wants done.
Out:  typed results (receipts, messages, tables), or an error of the small tree in `errors.py`.

The rooms inside:

* `routes.py` is sans-io: route data in, queues and addresses out, and the choice of the next queue.
* `cluster.py` owns the connections: name server choice, route look-up, requests to brokers.
* `sender.py`, `reader.py` and `admin/` speak to a `Cluster`, never to a socket.
* `client.py` is the entrance: a `Client` owns a `Cluster`, its tasks (`scope.py`), its heartbeats (`presence.py`) and
  its routes (`route_watch.py`).
* `producer.py` is the user's; `delivery.py` gets one frame stored, by the rules in `core/`; `fast_send.py` makes the
  frames, `batching.py` and `posting.py` many at once, `transactions.py` and `request_reply.py` what they say.

Invariants:

* Every wait has a limit, and every task is owned by the object that started it and ends with it.
* No answer is invented: what a broker did not tell is None with a reason, never zero.
* Everything raised on purpose is an `OrbitMQError` with the broker's code, `.retryable` and `.hint`.

Imports `wire` and `net` only.
"""
