"""The driver's half of a write: one decision per batch, then its messages appear; a second try changes nothing.

Why no message appears twice, and none is lost (decision 010 has the long form):

* A row is visible only when the half message that holds it is committed, and only those that a marker lists are.
* Per application and batch there is one marker `decided`: it is written only when the newest marker belongs to an
  earlier batch. A repeated batch finds it, ends what it lists, and rolls its own new half messages back.
* To end a transaction that has ended changes nothing at OrbitMQ; at a Java broker the message is looked for first.
* Spark writes its own commit record after `commit` returns, so a batch is repeated until all of it is visible.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from orbitmq.client.admin.targets import masters_of
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError
from orbitmq.spark.sink_end import Ender, open_halves
from orbitmq.spark.sink_handles import Handles
from orbitmq.spark.sink_markers import DONE, Marker, Markers
from orbitmq.spark.sink_options import SinkOptions, producer_group

log = logging.getLogger("orbitmq.spark")


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What one task reports to the driver."""

    app_id: str
    rows: int
    packed: dict[str, bytes]
    """The half messages that hold its rows."""
    ordered: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of half messages; each may hold many rows."""

    committed: int
    rolled_back: int
    repeated: bool
    """The batch was there already, so nothing new became visible."""


class Committer:
    def __init__(self, cluster: Cluster, options: SinkOptions, app_id: str) -> None:
        self._cluster = cluster
        self._options = options
        self._app_id = app_id
        self._group = producer_group(app_id)
        self._markers = Markers(cluster, app_id)

    async def commit(self, batch: int, results: Sequence[TaskResult]) -> Outcome:
        handles = _all_handles(results)
        newest = await self._markers.newest()
        if newest is not None and newest.batch >= batch:
            return await self._repeat(newest, batch, handles)
        if newest is not None and newest.state != DONE:
            # Left behind by a run that never came back to this batch; its messages belong to the topic.
            await self._finish(newest)
        if not len(handles):
            return Outcome(0, 0, False)
        ordered = any(result.ordered for result in results)
        marker, is_ours = await self._markers.decide(batch, self._group, handles, ordered=ordered)
        if not is_ours:
            return await self._repeat(marker, batch, handles)
        await self._end(marker, handles, perhaps_before=False)
        return Outcome(len(handles), await self._roll_back_orphans(), False)

    async def commit_unmarked(self, results: Sequence[TaskResult]) -> Outcome:
        """For a job without a name: nobody could find a marker of it, so there is none.

        A driver that dies in the middle leaves the rows behind that place invisible until they expire.
        """
        handles = _all_handles(results)
        ender = self._ender(ordered=any(result.ordered for result in results))
        for broker in handles.of_broker:
            await ender.commit(broker, handles.pairs(broker), perhaps_before=False)
        return Outcome(len(handles), await self._roll_back_orphans(), False)

    async def _repeat(self, newest: Marker, batch: int, handles: Handles) -> Outcome:
        log.warning("batch %d of %s was written before: nothing is written again", batch, self._app_id)
        if newest.state != DONE:
            await self._finish(newest)
        return Outcome(0, await self._roll_back(handles) + await self._roll_back_orphans(), True)

    async def _finish(self, marker: Marker) -> None:
        await self._end(marker, await self._markers.handles(marker), perhaps_before=True)

    async def _end(self, marker: Marker, handles: Handles, *, perhaps_before: bool) -> None:
        ender = self._ender(ordered=marker.ordered)
        await asyncio.gather(
            *(
                ender.commit(broker, handles.pairs(broker), perhaps_before=perhaps_before)
                for broker in handles.of_broker
            )
        )
        await self._markers.done(marker)

    async def abort(self, results: Sequence[TaskResult | None], *, anonymous: bool) -> int:
        """Rolls back what the tasks of a failed job have sent; how many half messages there were.

        When every task has reported, it may be the commit that failed, and a decision may be on its way: then
        nothing is touched, the next commit of this application settles it. An anonymous one has no next.
        """
        if None not in results:
            return 0
        count = await self._roll_back(_all_handles([result for result in results if result is not None]))
        return count + (await self._roll_back_orphans() if anonymous else 0)

    async def _roll_back(self, handles: Handles) -> int:
        ender = self._ender()
        counts = await asyncio.gather(
            *(ender.roll_back(broker, handles.pairs(broker)) for broker in handles.of_broker)
        )
        return sum(counts)

    async def _roll_back_orphans(self) -> int:
        """Half messages of killed tasks: of this group nothing is open that still has a future."""
        found = 0
        for broker, addr in (await masters_of(self._cluster)).items():
            try:
                left = await open_halves(self._cluster, addr, self._group)
                found += await self._ender().roll_back(broker, left) if left else 0
            except OrbitMQError as error:
                # They are invisible and expire; the batch itself is complete.
                log.warning("half messages of killed tasks stay on %s for now: %s", broker, error)
        return found

    def _ender(self, *, ordered: bool = False) -> Ender:
        return Ender(
            self._cluster, self._group, retry_timeout_s=self._options.retry_timeout_s, ordered=ordered
        )


def _all_handles(results: Sequence[TaskResult]) -> Handles:
    handles = Handles()
    for result in results:
        handles.extend(Handles.unpacked(result.packed))
    return handles
