from __future__ import annotations

import pytest

from orbitmq.broker.admin.broker_status import bytes_text
from orbitmq.wire.codes import RequestCode as R
from orbitmq.wire.codes import ResponseCode
from tests.broker.admin.world import T0, World

RUNTIME_KEYS = """
bootTimestamp runtime putMessageEntireTimeMax putMessageTimesTotal putMessageFailedTimes putMessageSizeTotal
putMessageDistributeTime putMessageAverageSize dispatchMaxBuffer getMessageEntireTimeMax putTps getFoundTps
getMissTps getTotalTps getTransferedTps getTransferredTps commitLogDiskRatio consumeQueueDiskRatio
commitLogMinOffset commitLogMaxOffset brokerVersionDesc brokerVersion msgPutTotalYesterdayMorning
msgPutTotalTodayMorning msgPutTotalTodayNow msgGetTotalYesterdayMorning msgGetTotalTodayMorning
msgGetTotalTodayNow sendThreadPoolQueueSize sendThreadPoolQueueCapacity pullThreadPoolQueueSize
pullThreadPoolQueueCapacity queryThreadPoolQueueSize queryThreadPoolQueueCapacity EndTransactionQueueSize
EndTransactionThreadPoolQueueCapacity dispatchBehindBytes pageCacheLockTimeMills
sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills
queryThreadPoolQueueHeadWaitTimeMills earliestMessageTimeStamp startAcceptSendRequestTimeStamp
remainTransientStoreBufferNumbs remainHowManyDataToFlush
"""


def test_every_runtime_key_that_tools_read_is_there_as_text(world: World) -> None:
    table = world.json(R.GET_BROKER_RUNTIME_INFO)["table"]
    assert set(RUNTIME_KEYS.split()) <= table.keys()
    assert all(isinstance(value, str) for value in table.values())
    assert (table["brokerVersion"], table["brokerVersionDesc"]) == ("407", "V4_9_7")
    assert table["earliestMessageTimeStamp"] == "-1"
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1


def test_runtime_figures_follow_the_traffic(world: World) -> None:
    world.put("orders")
    world.stats.put("orders", 25, 2500)
    world.now = T0 + 62_000
    table = world.json(R.GET_BROKER_RUNTIME_INFO)["table"]
    assert table["msgPutTotalTodayNow"] == "25"
    assert table["putMessageAverageSize"] == "100.0"
    assert table["runtime"] == "[ 0 days, 0 hours, 1 minutes, 2 seconds ]"
    assert table["commitLogMaxOffset"] == str(world.store.max_phys_offset)
    assert table["earliestMessageTimeStamp"] == str(T0 + 1)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 20, "1.0 MiB"),
        (3 << 40, "3.0 TiB"),
    ],
)
def test_sizes_read_as_in_java(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_counted_items_are_shown_and_others_do_not_exist(world: World) -> None:
    world.stats.tick(T0)
    world.stats.put("orders", 30, 300)
    world.stats.tick(T0 + 10_000)
    told = world.json(R.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="orders")
    assert told["statsMinute"] == {"avgpt": 30.0, "sum": 30, "tps": 3.0}
    assert told.keys() == {"statsDay", "statsHour", "statsMinute"}
    code, remark = world.refusal(R.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="idle")
    assert code == ResponseCode.SYSTEM_ERROR
    assert "<TOPIC_PUT_NUMS> <idle> not exist" in remark


def test_a_slave_gets_the_texts_of_the_offset_files(world: World) -> None:
    world.offsets.commit("billing", "orders", 0, 5)
    world.offsets.commit("billing", "orders", 1, 6)
    world.delays.put(3, 7)
    assert world.ok(R.GET_ALL_CONSUMER_OFFSET).body == b'{"offsetTable":{"orders@billing":{0:5,1:6}}}'
    assert world.ok(R.GET_ALL_DELAY_OFFSET).body == b'{"offsetTable":{3:7}}'


def test_cleaning_by_hand_says_what_went(world: World) -> None:
    assert world.ok(R.CLEAN_EXPIRED_CONSUMEQUEUE).ext == {"queueFiles": "0"}
    assert world.store.cleaned == []
    told = world.ok(R.DELETE_EXPIRED_COMMITLOG).ext
    assert (told["logFiles"], told["queueFiles"], told["indexFiles"]) == ("3", "2", "1")
    assert world.store.cleaned == [True]
