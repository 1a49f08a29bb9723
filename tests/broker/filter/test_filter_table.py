from __future__ import annotations

from pathlib import Path

from orbitmq.broker.filter.bloom import bit_positions
from orbitmq.broker.filter.filter_table import KEEP_DEAD_MS, FilterTable, Wanted
from orbitmq.wire import fastjson

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "store" / "config" / "consumerFilter.json"
ROW = Wanted("cg", "TopicA", "a > 1", "SQL92", 1_700_000_000_000)


def test_the_file_is_what_the_java_broker_writes() -> None:
    table = FilterTable()
    table.follow([ROW], 1)
    assert fastjson.dumps(table.to_json()) == (
        b'{"filterDataByTopic":{"TopicA":{"groupFilterData":{"cg":{"bloomFilterData":{"bitNum":112,'
        b'"bitPos":[18,77,29]},"bornTime":1,"clientVersion":1700000000000,"consumerGroup":"cg","dead":false,'
        b'"deadTime":0,"expression":"a > 1","expressionType":"SQL92","topic":"TopicA"}},"topic":"TopicA"}}}'
    )


def test_the_golden_file_is_read_and_written_back_to_the_byte() -> None:
    table = FilterTable()
    table.from_json(fastjson.loads(GOLDEN.read_bytes()))
    assert fastjson.dumps_pretty(table.to_json()) == GOLDEN.read_bytes()


def test_what_was_saved_comes_back() -> None:
    table, again = FilterTable(), FilterTable()
    table.follow([ROW, ROW._replace(group="other", expression="b IS NULL")], 5)
    again.from_json(fastjson.loads(fastjson.dumps_pretty(table.to_json())))
    assert again.to_json() == table.to_json()


def test_a_filter_dies_with_its_group_and_is_forgotten_a_day_later() -> None:
    table = FilterTable()
    table.follow([ROW], 1000)
    assert table.changes == 1
    table.follow([ROW], 2000)
    assert table.changes == 1  # nothing new, nothing to save
    table.follow([], 3000)
    assert '"dead":true,"deadTime":3000' in fastjson.dumps(table.to_json()).decode()
    table.follow([], 3000 + KEEP_DEAD_MS)
    assert table.changes == 2
    table.follow([], 3001 + KEEP_DEAD_MS)
    assert table.to_json() == {"filterDataByTopic": {}}


def test_a_newer_expression_replaces_an_older_one_and_never_the_reverse() -> None:
    table = FilterTable()
    table.follow([ROW], 1)
    table.follow([ROW._replace(expression="a > 2", version=ROW.version + 1)], 2)
    assert b"a > 2" in fastjson.dumps(table.to_json())
    table.follow([ROW], 3)
    assert b"a > 2" in fastjson.dumps(table.to_json())


def test_bloom_bits_of_names_longer_than_one_block() -> None:
    # Worked out by BloomFilter.generate of rocketmq-filter 4.9.7.
    group = "GroupéLong-name-with-more-than-sixteen-bytes-of-text"
    assert bit_positions(group, "TopicSomething") == [38, 37, 36]
    assert bit_positions("TopicA", "cg") == [95, 89, 18]
