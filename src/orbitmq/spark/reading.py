"""What a task does: pull its slices, decode the pages, hand Arrow record batches to Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
import pyarrow as pa

from orbitmq.client.errors import OrbitMQError
from orbitmq.spark.brokers import Brokers
from orbitmq.spark.columns import decode_page
from orbitmq.spark.errors import explained
from orbitmq.spark.options import ReadOptions
from orbitmq.spark.page_parts import PageParts
from orbitmq.spark.plain_bodies import PlainBodies
from orbitmq.spark.pull_client import (
    LARGE_PAGE_BYTES,
    Page,
    PageSize,
    PullSettings,
    QueueSlice,
    SliceReader,
)
from orbitmq.spark.records import Heads
from orbitmq.wire.subscription import split_tags
from orbitmq.wire.topics import TOOLS_GROUP

# Brokers that send small pages would otherwise make Spark handle thousands of tiny batches.
JOINED_ROWS: Final = 8192


def read_slices(
    options: ReadOptions, columns: Sequence[str], slices: Iterable[QueueSlice], tags: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The messages of some slices as record batches; `tags` narrows what the option of this name asks for."""
    settings = PullSettings(
        group=options.group or TOOLS_GROUP,
        tags=tags or options.tags,
        page_bytes=options.page_bytes,
        retry_timeout_s=options.retry_timeout_s,
        fail_on_data_loss=options.fail_on_data_loss,
    )
    try:
        yield from joined_batches(_decoded(options, settings, columns, slices))
    except OrbitMQError as error:
        raise explained(error) from error


def _decoded(
    options: ReadOptions, settings: PullSettings, columns: Sequence[str], slices: Iterable[QueueSlice]
) -> Iterator[pa.RecordBatch]:
    wanted = frozenset(split_tags(settings.tags))
    sizes = PageSize(settings)
    with Brokers(options.namesrv, options.request_timeout_s) as brokers:
        for piece in slices:
            topic, broker, _ = piece.queue
            plain = PlainBodies(columns, topic, broker)
            quick = plain.of_page if plain.able else None
            parts = PageParts(columns, piece.queue)
            reader = SliceReader(brokers, piece, settings, sizes, quick=quick, parts=parts)
            for page in joined_pages(reader):
                if isinstance(page, pa.RecordBatch):
                    yield page
                    continue
                yield decode_page(
                    page.data,
                    columns=columns,
                    topic=topic,
                    broker=broker,
                    heads=page.heads,
                    window=page.window,
                    tags=wanted,
                )


def joined_pages(pages: Iterable[Page | pa.RecordBatch]) -> Iterator[Page | pa.RecordBatch]:
    """Small pages of one queue as larger ones; large ones, and what is decoded already, as they are."""
    waiting: list[Page] = []
    size = 0
    for page in pages:
        if isinstance(page, Page) and page.window is None and len(page.data) < LARGE_PAGE_BYTES:
            waiting.append(page)
            size += len(page.data)
            if size < LARGE_PAGE_BYTES:
                continue
            yield _joined(waiting)
        else:
            if waiting:
                yield _joined(waiting)
            yield page
        waiting, size = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(pages: Sequence[Page]) -> Page:
    if len(pages) == 1:
        return pages[0]
    bases = accumulate((len(page.data) for page in pages), initial=0)
    data = np.concatenate([page.data for page in pages])
    starts = np.concatenate([page.heads.starts + base for page, base in zip(pages, bases, strict=False)])
    return Page(data, Heads(data, starts), None)


def joined_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Tiny batches together: each costs Spark more than its rows do."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= JOINED_ROWS or batch.nbytes >= LARGE_PAGE_BYTES:
            yield _one_batch(waiting)
            waiting, rows = [], 0
    if waiting:
        yield _one_batch(waiting)


def _one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
