from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire import headers
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.errors import BadHeader
from orbitmq.wire.header_fields import Header
from orbitmq.wire.headers import REQUEST_HEADERS, RESPONSE_HEADERS, parse, to_ext

# Wire names as the Java header classes declare them; a star marks those without which Java fails the request.
DECLARED = {
    "SEND_MESSAGE": "*producerGroup *topic *defaultTopic *defaultTopicQueueNums *queueId *sysFlag "
    "*bornTimestamp *flag properties reconsumeTimes unitMode batch maxReconsumeTimes",
    "SEND_MESSAGE_V2": "*a *b *c *d *e *f *g *h i j k l m n",
    "PULL_MESSAGE": "*consumerGroup *topic *queueId *queueOffset *maxMsgNums *sysFlag *commitOffset "
    "*suspendTimeoutMillis subscription *subVersion expressionType",
    "QUERY_MESSAGE": "*topic *key *maxNum *beginTimestamp *endTimestamp _UNIQUE_KEY_QUERY",
    "QUERY_CONSUMER_OFFSET": "*consumerGroup *topic *queueId",
    "UPDATE_CONSUMER_OFFSET": "*consumerGroup *topic *queueId *commitOffset",
    "SEARCH_OFFSET_BY_TIMESTAMP": "*topic *queueId *timestamp",
    "GET_MAX_OFFSET": "*topic *queueId",
    "GET_MIN_OFFSET": "*topic *queueId",
    "GET_EARLIEST_MSG_STORETIME": "*topic *queueId",
    "VIEW_MESSAGE_BY_ID": "*offset",
    "UNREGISTER_CLIENT": "*clientID producerGroup consumerGroup",
    "CONSUMER_SEND_MSG_BACK": "*offset *group *delayLevel originMsgId originTopic unitMode maxReconsumeTimes",
    "END_TRANSACTION": "*producerGroup *tranStateTableOffset *commitLogOffset *commitOrRollback "
    "fromTransactionCheck *msgId transactionId",
    "GET_CONSUMER_LIST_BY_GROUP": "*consumerGroup",
    "CHECK_TRANSACTION_STATE": "*tranStateTableOffset *commitLogOffset msgId transactionId offsetMsgId",
    "NOTIFY_CONSUMER_IDS_CHANGED": "*consumerGroup",
    "RESET_CONSUMER_CLIENT_OFFSET": "*topic *group *timestamp *isForce",
    "GET_CONSUMER_STATUS_FROM_CLIENT": "*topic *group clientAddr",
    "GET_CONSUMER_RUNNING_INFO": "*consumerGroup *clientId jstackEnable",
    "CONSUME_MESSAGE_DIRECTLY": "*consumerGroup clientId msgId brokerName",
    "PUSH_REPLY_MESSAGE_TO_CLIENT": "*producerGroup *topic *defaultTopic *defaultTopicQueueNums *queueId "
    "*sysFlag *bornTimestamp *flag properties reconsumeTimes unitMode *bornHost *storeHost *storeTimestamp",
    "PUT_KV_CONFIG": "*namespace *key *value",
    "GET_KV_CONFIG": "*namespace *key",
    "DELETE_KV_CONFIG": "*namespace *key",
    "GET_KVLIST_BY_NAMESPACE": "*namespace",
    "REGISTER_BROKER": "*brokerName *brokerAddr *clusterName *haServerAddr *brokerId compressed bodyCrc32",
    "UNREGISTER_BROKER": "*brokerName *brokerAddr *clusterName *brokerId",
    "GET_ROUTEINFO_BY_TOPIC": "*topic acceptStandardJsonOnly",
    "WIPE_WRITE_PERM_OF_BROKER": "*brokerName",
    "ADD_WRITE_PERM_OF_BROKER": "*brokerName",
    "DELETE_TOPIC_IN_NAMESRV": "*topic clusterName",
    "GET_TOPICS_BY_CLUSTER": "*cluster",
    "QUERY_DATA_VERSION": "*brokerName *brokerAddr *clusterName *brokerId",
    "UPDATE_AND_CREATE_TOPIC": "*topic *defaultTopic *readQueueNums *writeQueueNums *perm *topicFilterType "
    "topicSysFlag *order",
    "GET_TOPIC_STATS_INFO": "*topic",
    "GET_CONSUMER_CONNECTION_LIST": "*consumerGroup",
    "GET_PRODUCER_CONNECTION_LIST": "*producerGroup",
    "DELETE_SUBSCRIPTIONGROUP": "*groupName removeOffset cleanOffset",
    "GET_CONSUME_STATS": "*consumerGroup topic",
    "DELETE_TOPIC_IN_BROKER": "*topic",
    "INVOKE_BROKER_TO_RESET_OFFSET": "*topic *group *timestamp *isForce",
    "INVOKE_BROKER_TO_GET_CONSUMER_STATUS": "*topic *group clientAddr",
    "QUERY_TOPIC_CONSUME_BY_WHO": "*topic",
    "QUERY_CONSUME_TIME_SPAN": "*topic *group",
    "QUERY_CORRECTION_OFFSET": "filterGroups *compareGroup *topic",
    "CLONE_GROUP_OFFSET": "*srcGroup *destGroup topic offline",
    "VIEW_BROKER_STATS_DATA": "*statsName *statsKey",
    "GET_BROKER_CONSUME_STATS": "*isOrder",
    "RESUME_CHECK_HALF_MESSAGE": "msgId",
}


@pytest.mark.parametrize("name", DECLARED)
def test_headers_have_javas_fields(name: str) -> None:
    fields = msgspec.structs.fields(REQUEST_HEADERS[RequestCode[name]])
    declared = DECLARED[name].split()
    assert {word.removeprefix("*") for word in declared} <= {field.encode_name for field in fields}
    required = {field.encode_name for field in fields if field.required}
    assert required == {word[1:] for word in declared if word.startswith("*")}


@pytest.mark.parametrize(
    ("header_type", "fields"),
    [
        (headers.SendResponse, "msgId queueId queueOffset"),
        (headers.PullResponse, "suggestWhichBrokerId nextBeginOffset minOffset maxOffset"),
        (headers.QueryMessageResponse, "indexLastUpdateTimestamp indexLastUpdatePhyoffset"),
        (headers.OffsetResponse, "offset"),
        (headers.WipePermResponse, "wipeTopicCount"),
        (headers.AddPermResponse, "addTopicCount"),
        (headers.DataVersionResponse, "changed"),
    ],
)
def test_response_fields_without_which_java_throws(header_type: type[Header], fields: str) -> None:
    required = [field.encode_name for field in msgspec.structs.fields(header_type) if field.required]
    assert required == fields.split()


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(max_size=10),
    "bool": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    text = str(kind)
    found = next(strategy for name, strategy in VALUES.items() if name in text)
    return found | st.none() if "None" in text else found


ALL_TYPES = sorted({*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()}, key=lambda found: found.__name__)


@given(st.sampled_from(ALL_TYPES), st.data())
def test_every_header_survives_the_wire(header_type: type[Header], data: st.DataObject) -> None:
    fields = msgspec.structs.fields(header_type)
    header = header_type(**{field.name: data.draw(values_of(field.type)) for field in fields})
    ext = to_ext(header)
    assert all(type(value) is str for value in ext.values())
    assert parse(header_type, ext) == header


def test_letters_and_names_are_the_same_header() -> None:
    values = ["pg", "T", "TBW102", "4", "-1", "0", "17", "0", "p", "1", "true", "3", "false"]
    v2 = parse(headers.SendHeaderV2, dict(zip("abcdefghijklm", values, strict=True)))
    v1 = v2.to_v1()
    assert (v1.producer_group, v1.topic, v1.default_topic, v1.default_topic_queue_nums) == (
        "pg",
        "T",
        "TBW102",
        4,
    )
    assert (v1.queue_id, v1.sys_flag, v1.born_timestamp, v1.flag, v1.properties) == (-1, 0, 17, 0, "p")
    assert (v1.reconsume_times, v1.unit_mode, v1.max_reconsume_times, v1.batch) == (1, True, 3, False)
    assert v1.to_v2() == v2


def test_an_error_names_the_request() -> None:
    with pytest.raises(BadHeader, match="field consumerGroup of PULL_MESSAGE is missing"):
        parse(headers.PullHeader, {})
    with pytest.raises(BadHeader, match="field topic of GET_MIN_OFFSET is missing"):
        parse(headers.TopicQueueHeader, {}, RequestCode.GET_MIN_OFFSET)
    with pytest.raises(BadHeader, match="field offset of QUERY_CONSUMER_OFFSET's response is missing"):
        parse(headers.OffsetResponse, {})


def test_both_words_for_dropping_offsets() -> None:
    assert parse(headers.DeleteGroupHeader, {"groupName": "g", "removeOffset": "true"}).drops_offsets
    assert parse(headers.DeleteGroupHeader, {"groupName": "g", "cleanOffset": "true"}).drops_offsets
    assert not parse(headers.DeleteGroupHeader, {"groupName": "g", "cleanOffset": "false"}).drops_offsets


def test_one_way_to_import_them_all() -> None:
    exported = set(headers.__all__)
    assert {header_type.__name__ for header_type in ALL_TYPES} <= exported
