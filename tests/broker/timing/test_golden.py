"""The store that the Java broker wrote: its waiting messages are delivered here, at their moments."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from orbitmq.broker.delays import DelayOffsets
from orbitmq.broker.persist import DELAYS, ConfigStore
from orbitmq.store.disk import Disk
from orbitmq.store.settings import StoreSettings
from orbitmq.wire.topics import SCHEDULE_TOPIC
from tests.broker.timing.world import Clock, World

GOLDEN = Path(__file__).parents[2] / "data" / "golden"


class GoldenWorld(World):
    def __init__(self, path: Path, now_ms: int) -> None:
        self.root = path / "store"
        shutil.copytree(GOLDEN / "store", self.root)
        super().__init__(self.root, clock=Clock(now_ms))

    def start(self) -> None:
        config = json.loads((GOLDEN / "manifest.json").read_text())["config"]
        self.settings = StoreSettings(
            str(self.root),
            commit_log_file_bytes=config["mappedFileSizeCommitLog"],
            consume_queue_file_bytes=config["mappedFileSizeConsumeQueue"],
            index_slots=config["maxHashSlotNum"],
            index_entries=config["maxIndexNum"],
        )
        self.offsets = DelayOffsets()
        tables = ConfigStore(Disk(), str(self.root / "config"))
        tables.add(DELAYS, self.offsets)
        tables.load()
        super().start()


def test_pending_messages_of_the_java_broker_are_delivered(tmp_path: Path) -> None:
    manifest = json.loads((GOLDEN / "manifest.json").read_text())
    progress = {1: 17, 2: 2, 4: 1}
    pending = [
        message
        for message in manifest["messages"]
        if message["topic"] == SCHEDULE_TOPIC
        and message["queueOffset"] >= progress.get(message["queueId"] + 1, 0)
    ]
    assert {message["queueId"] + 1 for message in pending} == {17, 18}
    stopped_ms = max(message["storeTimestamp"] for message in manifest["messages"]) + 1
    world = GoldenWorld(tmp_path, stopped_ms)
    assert world.offsets.table == progress
    world.step()
    assert len(list(world.waiting())) == len(pending)
    before = {queue_id: len(world.messages("GoldenDelay", queue_id)) for queue_id in range(4)}
    world.run_until(stopped_ms + 7_200_000)
    for waiting in pending:
        queue_id = int(waiting["properties"]["REAL_QID"])
        delivered = [
            message
            for message in world.messages("GoldenDelay", queue_id)[before[queue_id] :]
            if message.msg_id == waiting["msgId"]
        ]
        assert len(delivered) == 1
        (message,) = delivered
        delay_ms = world.settings.delay_levels_ms[int(waiting["properties"]["DELAY"]) - 1]
        assert message.store_ms == waiting["storeTimestamp"] + delay_ms
        assert message.properties == waiting["properties"]
        assert message.born_ms == waiting["bornTimestamp"]
        assert message.born_host == waiting["bornHost"]
        assert message.reconsume_times == waiting["reconsumeTimes"]
        assert message.body_crc == waiting["bodyCRC"]
    assert world.offsets.table == {**progress, 17: 1, 18: 2}
