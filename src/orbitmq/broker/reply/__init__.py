"""Request and reply: answers of consumers on their way back to the producer that waits for them.

In:   SEND_REPLY_MESSAGE and its V2 form, from whoever consumed a request.
Out:  PUSH_REPLY_MESSAGE_TO_CLIENT to the connection of the client named in REPLY_TO_CLIENT; the reply
      stored in the reply topic when `storeReplyMessageEnable` says so; the outcome of the push as the
      answer.

Invariant: the sender of a reply is told success only if the waiting client confirmed it.
May import the broker's tables, `orbitmq.net`, `orbitmq.store`, `orbitmq.wire` and `orbitmq.config`.
"""

from __future__ import annotations
