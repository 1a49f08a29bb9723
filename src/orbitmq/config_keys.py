"""Every setting there is, as a table: attribute, type, RocketMQ's key, default, what it does.

Defaults are those of the Java broker 4.9, with two exceptions: `flushDiskType` is SYNC_FLUSH, so that an
acknowledgement means "on disk", and a blank name or address is filled in by `BrokerConfig.fill_blanks`.
Keys marked *ours* do not exist in RocketMQ.

Imports nothing of ours but the mechanism in `config_model`, and the rows a name server shares with a controller.
"""

from __future__ import annotations

from dataclasses import dataclass

from orbitmq.config_controller import CONTROLLER_PORT, ControllerRules
from orbitmq.config_model import (
    BrokerRole,
    FlushDiskType,
    Mismatch,
    Range,
    delays,
    hours,
    setting,
    whole_units,
)

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
PORT = Range(0, 65535)
PERCENT = Range(0, 100)
POSITIVE = Range(1)
NOT_NEGATIVE = Range(0)

NOT_USED = "this version has no such part"
ONE_LOOP = "requests are served by one event loop, not by thread pools"
ONLY_5X = "a setting of RocketMQ 5, which this name server does not have"

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@dataclass(slots=True)
class BrokerKeys:
    # Who and where
    broker_name: str = setting("brokerName", "", "name of this broker group; blank: the host's name")
    broker_cluster_name: str = setting("brokerClusterName", "DefaultCluster", "cluster it belongs to")
    broker_id: int = setting("brokerId", 0, "0 is the master, above are slaves", within=NOT_NEGATIVE)
    broker_role: BrokerRole = setting("brokerRole", BrokerRole.ASYNC_MASTER, "how copies are confirmed")
    broker_ip1: str = setting("brokerIP1", "", "address told to clients; blank: first non-loopback address")
    broker_ip2: str = setting("brokerIP2", "", "address told to slaves; blank: as brokerIP1")
    listen_host: str = setting("listenHost", "0.0.0.0", "ours: interface to listen on")
    listen_port: int = setting("listenPort", 10911, "port for clients; 0: any free one", within=PORT)
    ha_listen_port: int = setting("haListenPort", 0, "port for slaves; 0: listenPort + 1", within=PORT)
    console_port: int = setting("consolePort", 8080, "ours: port of the web page, 0 for none", within=PORT)
    namesrv_addr: str = setting("namesrvAddr", "", "name servers, `host:port` separated by `;`")
    region_id: str = setting("regionId", "DefaultRegion", "told to clients for their trace records")
    broker_permission: int = setting("brokerPermission", 6, "4 read, 2 write, 6 both", within=Range(0, 7))

    # Topics and groups
    default_topic_queue_nums: int = setting("defaultTopicQueueNums", 8, "queues of TBW102", within=POSITIVE)
    auto_create_topic_enable: bool = setting("autoCreateTopicEnable", True, "first send makes the topic")
    auto_create_subscription_group: bool = setting(
        "autoCreateSubscriptionGroup", True, "first use makes the group"
    )
    cluster_topic_enable: bool = setting("clusterTopicEnable", True, "the cluster's name is a topic")
    broker_topic_enable: bool = setting("brokerTopicEnable", True, "the broker's name is a topic")
    trace_topic_enable: bool = setting("traceTopicEnable", False, "make the trace topic at start")
    msg_trace_topic_name: str = setting("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC", "name of the trace topic")
    trace_on: bool = setting("traceOn", True, "tell clients that tracing is welcome")
    subscription_mismatch: Mismatch = setting(
        "subscriptionMismatch", Mismatch.WARN, "ours: members of a group that subscribe differently"
    )

    # Requests
    reject_transaction_message: bool = setting("rejectTransactionMessage", False, "refuse half messages")
    long_polling_enable: bool = setting("longPollingEnable", True, "hold a pull that finds nothing")
    short_polling_time_mills: int = setting(
        "shortPollingTimeMills", SECOND_MS, "how long without long polling", within=POSITIVE
    )
    notify_consumer_ids_changed_enable: bool = setting(
        "notifyConsumerIdsChangedEnable", True, "tell members at once when their group changes"
    )
    slave_read_enable: bool = setting("slaveReadEnable", False, "slow readers may read from a slave")
    enable_property_filter: bool = setting("enablePropertyFilter", False, "allow SQL92 filters")
    filter_support_retry: bool = setting("filterSupportRetry", False, "filter retried messages as well")
    acl_enable: bool = setting("aclEnable", False, "requests must be signed", inert=NOT_USED)
    store_reply_message_enable: bool = setting("storeReplyMessageEnable", True, "also store replies")
    transaction_time_out: int = setting(
        "transactionTimeOut", 6 * SECOND_MS, "ms before a check", within=NOT_NEGATIVE
    )
    transaction_check_max: int = setting(
        "transactionCheckMax", 15, "checks before giving up", within=POSITIVE
    )
    transaction_check_interval: int = setting(
        "transactionCheckInterval", MINUTE_MS, "ms between checks", within=POSITIVE
    )
    start_accept_send_request_time_stamp: int = setting(
        "startAcceptSendRequestTimeStamp", 0, "refuse sends before this time (epoch ms)", within=NOT_NEGATIVE
    )
    wait_time_mills_in_send_queue: int = setting(
        "waitTimeMillsInSendQueue",
        200,
        "refuse sends that waited longer (ms)",
        within=POSITIVE,
        inert=NOT_USED,
    )
    flush_consumer_offset_interval: int = setting(
        "flushConsumerOffsetInterval", 5 * SECOND_MS, "ms between saves of consumer offsets", within=POSITIVE
    )
    send_message_thread_pool_nums: int = setting(
        "sendMessageThreadPoolNums", 1, "threads for sends", inert=ONE_LOOP, within=POSITIVE
    )
    pull_message_thread_pool_nums: int = setting(
        "pullMessageThreadPoolNums", 1, "threads for pulls", inert=ONE_LOOP, within=POSITIVE
    )
    transfer_msg_by_heap: bool = setting(
        "transferMsgByHeap", True, "copy messages into the answer", inert="answers are always one buffer"
    )

    # Registration at the name servers
    register_name_server_period: int = setting(
        "registerNameServerPeriod", 30 * SECOND_MS, "ms between registrations (10 to 60 s)", within=POSITIVE
    )
    register_broker_timeout_mills: int = setting(
        "registerBrokerTimeoutMills", 6 * SECOND_MS, "ms to wait for the answer", within=POSITIVE
    )
    force_register: bool = setting("forceRegister", True, "register even when nothing changed")
    compressed_register: bool = setting("compressedRegister", False, "send the topic list compressed")

    # Connections
    max_connections: int = setting("maxConnections", 20_000, "ours: more are closed at once", within=POSITIVE)
    max_in_flight_bytes: int = setting(
        "maxInFlightBytes",
        512 * MIB,
        "ours: bytes of unfinished requests over all connections",
        within=POSITIVE,
    )
    max_frame_bytes: int = setting("maxFrameBytes", 16 * MIB, "ours: largest request", within=Range(4 * KIB))
    connection_idle_seconds: int = setting(
        "serverChannelMaxIdleTimeSeconds",
        120,
        "a connection silent this long is closed",
        alias="connectionIdleSeconds",
        within=POSITIVE,
    )

    # Files
    store_path_root_dir: str = setting("storePathRootDir", "~/store", "the store's directory")
    store_path_commit_log: str = setting(
        "storePathCommitLog", "", "the log's; blank: commitlog under the root"
    )
    mapped_file_size_commit_log: int = setting(
        "mappedFileSizeCommitLog", GIB, "bytes of a log file", within=Range(4 * KIB)
    )
    mapped_file_size_consume_queue: int = setting(
        "mappedFileSizeConsumeQueue", 300_000 * 20, "bytes of a queue file", check=whole_units
    )
    enable_consume_queue_ext: bool = setting(
        "enableConsumeQueueExt", False, "extension units", inert="extension units are read, never written"
    )
    mapped_file_size_consume_queue_ext: int = setting(
        "mappedFileSizeConsumeQueueExt",
        48 * MIB,
        "bytes of an extension file",
        within=POSITIVE,
        inert=NOT_USED,
    )
    message_index_enable: bool = setting("messageIndexEnable", True, "build the key index")
    message_index_safe: bool = setting(
        "messageIndexSafe", False, "recovery also goes by the index's time", inert=NOT_USED
    )
    max_hash_slot_num: int = setting("maxHashSlotNum", 5_000_000, "slots of an index file", within=POSITIVE)
    max_index_num: int = setting("maxIndexNum", 20_000_000, "entries of an index file", within=Range(2))
    max_message_size: int = setting("maxMessageSize", 4 * MIB, "largest body, in bytes", within=POSITIVE)
    message_delay_level: str = setting(
        "messageDelayLevel", DELAY_LEVELS, "delays of levels 1, 2, …", check=delays
    )
    timer_max_delay_sec: int = setting(
        "timerMaxDelaySec", 40 * 86_400, "seconds ahead that a delivery time may lie", within=POSITIVE
    )
    check_crc_on_recover: bool = setting(
        "checkCRCOnRecover",
        True,
        "recovery checks bodies, not only lengths",
        inert=NOT_USED,
    )
    duplication_enable: bool = setting(
        "duplicationEnable",
        False,
        "replay the log from a given offset",
        inert="only used by Java's own tests",
    )

    # Flush
    flush_disk_type: FlushDiskType = setting(
        "flushDiskType", FlushDiskType.SYNC_FLUSH, "when a send is acknowledged (RocketMQ: ASYNC_FLUSH)"
    )
    sync_flush_timeout: int = setting(
        "syncFlushTimeout", 5 * SECOND_MS, "ms before a send is told FLUSH_DISK_TIMEOUT", within=POSITIVE
    )
    flush_interval_commit_log: int = setting(
        "flushIntervalCommitLog", 500, "ms between asynchronous flushes of the log", within=POSITIVE
    )
    flush_commit_log_least_pages: int = setting(
        "flushCommitLogLeastPages",
        4,
        "dirty pages that make one worth while",
        within=NOT_NEGATIVE,
        inert=NOT_USED,
    )
    flush_commit_log_thorough_interval: int = setting(
        "flushCommitLogThoroughInterval",
        10 * SECOND_MS,
        "ms between flushes of everything",
        within=POSITIVE,
        inert=NOT_USED,
    )
    flush_interval_consume_queue: int = setting(
        "flushIntervalConsumeQueue",
        SECOND_MS,
        "ms between flushes of queues",
        within=POSITIVE,
        inert=NOT_USED,
    )
    flush_consume_queue_least_pages: int = setting(
        "flushConsumeQueueLeastPages",
        2,
        "dirty pages that make one worth while",
        within=NOT_NEGATIVE,
        inert=NOT_USED,
    )
    flush_consume_queue_thorough_interval: int = setting(
        "flushConsumeQueueThoroughInterval",
        MINUTE_MS,
        "ms between flushes of all queues",
        within=POSITIVE,
        inert=NOT_USED,
    )
    flush_delay_offset_interval: int = setting(
        "flushDelayOffsetInterval",
        10 * SECOND_MS,
        "ms between saves of delay progress",
        within=POSITIVE,
        inert=NOT_USED,
    )
    transient_store_pool_enable: bool = setting(
        "transientStorePoolEnable", False, "off-heap buffers", inert="the log is written with pwrite"
    )
    os_page_cache_busy_time_out_mills: int = setting(
        "osPageCacheBusyTimeOutMills",
        SECOND_MS,
        "ms of one append after which sends are refused",
        within=POSITIVE,
        inert=NOT_USED,
    )

    # Cleaning
    delete_when: str = setting("deleteWhen", "04", "hours of the day, `;` between", check=hours)
    file_reserved_time: int = setting("fileReservedTime", 72, "hours a log file is kept", within=NOT_NEGATIVE)
    disk_max_used_space_ratio: int = setting(
        "diskMaxUsedSpaceRatio",
        75,
        "percent of the disk; above: expired files go at any hour (10 to 95)",
        within=PERCENT,
    )
    disk_space_clean_forcibly_ratio: int = setting(
        "diskSpaceCleanForciblyRatio", 85, "percent; above: the oldest go, expired or not", within=PERCENT
    )
    disk_space_warning_level_ratio: int = setting(
        "diskSpaceWarningLevelRatio", 90, "percent; above: sends are refused", within=PERCENT
    )
    clean_file_forcibly_enable: bool = setting("cleanFileForciblyEnable", True, "allow unexpired files to go")
    delete_unconsumed: bool = setting(
        "deleteUnconsumed", True, "ours: false keeps expired files that a group must still read"
    )
    clean_resource_interval: int = setting(
        "cleanResourceInterval", 10 * SECOND_MS, "ms between looks at the disk", within=POSITIVE
    )
    delete_commit_log_files_interval: int = setting(
        "deleteCommitLogFilesInterval",
        100,
        "ms between two deletions",
        within=NOT_NEGATIVE,
        inert=NOT_USED,
    )
    delete_consume_queue_files_interval: int = setting(
        "deleteConsumeQueueFilesInterval",
        100,
        "ms between two deletions",
        within=NOT_NEGATIVE,
        inert=NOT_USED,
    )

    # Reading
    max_transfer_bytes_on_message_in_memory: int = setting(
        "maxTransferBytesOnMessageInMemory", 256 * KIB, "bytes of one pull, recent messages", within=POSITIVE
    )
    max_transfer_count_on_message_in_memory: int = setting(
        "maxTransferCountOnMessageInMemory", 32, "messages of one pull, recent ones", within=POSITIVE
    )
    max_transfer_bytes_on_message_in_disk: int = setting(
        "maxTransferBytesOnMessageInDisk", 64 * KIB, "bytes of one pull, old messages", within=POSITIVE
    )
    max_transfer_count_on_message_in_disk: int = setting(
        "maxTransferCountOnMessageInDisk", 8, "messages of one pull, old ones", within=POSITIVE
    )
    access_message_in_memory_max_ratio: int = setting(
        "accessMessageInMemoryMaxRatio", 40, "percent of RAM behind the log's end: old", within=PERCENT
    )
    max_msgs_num_batch: int = setting("maxMsgsNumBatch", 64, "most results of a key query", within=POSITIVE)
    default_query_max_num: int = setting(
        "defaultQueryMaxNum", 32, "results when the query names none", within=POSITIVE
    )

    # Copies
    ha_master_address: str = setting(
        "haMasterAddress", "", "master's address; blank: learnt from the name server"
    )
    ha_send_heartbeat_interval: int = setting(
        "haSendHeartbeatInterval", 5 * SECOND_MS, "ms of silence before a heartbeat", within=POSITIVE
    )
    ha_housekeeping_interval: int = setting(
        "haHousekeepingInterval", 20 * SECOND_MS, "ms of silence before a close", within=POSITIVE
    )
    ha_transfer_batch_size: int = setting(
        "haTransferBatchSize", 32 * KIB, "bytes of one block", within=POSITIVE
    )
    ha_slave_fallbehind_max: int = setting(
        "haSlaveFallbehindMax", 256 * MIB, "a slave further behind does not count", within=POSITIVE
    )
    slave_timeout: int = setting(
        "slaveTimeout", 3 * SECOND_MS, "ms before a send is told FLUSH_SLAVE_TIMEOUT", within=POSITIVE
    )
    max_clock_difference: int = setting(
        "maxClockDifference",
        10 * SECOND_MS,
        "ours: ms, between slave and master; 0: any",
        within=NOT_NEGATIVE,
    )
    enable_controller_mode: bool = setting(
        "enableControllerMode", False, "a controller decides who is master of this broker group"
    )
    controller_addr: str = setting("controllerAddr", "", "controllers, `host:port` separated by `;`")
    in_sync_replicas: int = setting(
        "inSyncReplicas", 2, "brokers that hold a message before SYNC_MASTER says SEND_OK", within=POSITIVE
    )
    ha_max_time_slave_not_catchup: int = setting(
        "haMaxTimeSlaveNotCatchup", 1500, "ms behind after which a slave is not waited for", within=POSITIVE
    )
    offset_check_in_slave: bool = setting("offsetCheckInSlave", False, "a slave corrects offsets, too")


@dataclass(slots=True)
class NamesrvKeys(ControllerRules):
    listen_host: str = setting("listenHost", "0.0.0.0", "ours: interface to listen on")
    listen_port: int = setting(
        "listenPort", 9876, "port for brokers and clients; 0: any free one", within=PORT
    )
    kv_config_path: str = setting("kvConfigPath", "~/namesrv/kvConfig.json", "file of the key values")
    config_store_path: str = setting(
        "configStorePath", "~/namesrv/namesrv.properties", "file that changed settings are saved to"
    )
    order_message_enable: bool = setting("orderMessageEnable", False, "routes carry the order configuration")
    enable_controller_in_namesrv: bool = setting(
        "enableControllerInNamesrv", False, "run a controller in this process, too"
    )
    controller_port: int = setting(
        "controllerPort", CONTROLLER_PORT, "ours: port of that controller; 0: any free one", within=PORT
    )
    cluster_test: bool = setting("clusterTest", False, "test mode", inert="only used by Java's own tests")
    support_acting_master: bool = setting("supportActingMaster", False, "acting master", inert=ONLY_5X)
    enable_topic_list: bool = setting("enableTopicList", True, "topic list requests", inert=ONLY_5X)
    delete_topic_with_broker_registration: bool = setting(
        "deleteTopicWithBrokerRegistration", False, "registration removes topics", inert=ONLY_5X
    )
    max_connections: int = setting("maxConnections", 20_000, "ours: more are closed at once", within=POSITIVE)
    max_in_flight_bytes: int = setting(
        "maxInFlightBytes",
        512 * MIB,
        "ours: bytes of unfinished requests over all connections",
        within=POSITIVE,
    )
    max_frame_bytes: int = setting("maxFrameBytes", 16 * MIB, "ours: largest request", within=Range(4 * KIB))
    connection_idle_seconds: int = setting(
        "serverChannelMaxIdleTimeSeconds",
        120,
        "a connection silent this long is closed",
        alias="connectionIdleSeconds",
        within=POSITIVE,
    )


# RocketMQ's other settings: a file that names them is right, they only steer what Java has and this has not.
ELSEWHERE = """
rocketmqHome messageStorePlugIn putMessageFutureThreadPoolNums processReplyMessageThreadPoolNums
queryMessageThreadPoolNums adminBrokerThreadPoolNums clientManageThreadPoolNums
consumerManageThreadPoolNums heartbeatThreadPoolNums endTransactionThreadPoolNums
flushConsumerOffsetHistoryInterval fetchNamesrvAddrByAddressServer sendThreadPoolQueueCapacity
putThreadPoolQueueCapacity pullThreadPoolQueueCapacity replyThreadPoolQueueCapacity
queryThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity
consumerManagerThreadPoolQueueCapacity heartbeatThreadPoolQueueCapacity
endTransactionPoolQueueCapacity filterServerNums highSpeedMode commercialEnable commercialTimerCount
commercialTransCount commercialBigCount commercialBaseCount maxDelayTime
disableConsumeIfConsumerReadSlowly consumerFallbehindThreshold brokerFastFailureEnable
waitTimeMillsInPullQueue waitTimeMillsInHeartbeatQueue waitTimeMillsInTransactionQueue
enableCalcFilterBitMap expectConsumerNumUseFilter maxErrorRateOfBloomFilter filterDataCleanTimeSpan
enableDetailStat autoDeleteUnusedStats isolateLogEnable storePathDLedgerCommitLog
readOnlyCommitLogStorePaths bitMapLengthConsumeQueueExt commitIntervalCommitLog
useReentrantLockWhenPutMessage flushCommitLogTimed destroyMapedFileIntervalForcibly
redeleteHangedFileInterval putMsgIndexHightWater commitCommitLogLeastPages
flushLeastPagesWhenWarmMapedFile commitCommitLogThoroughInterval warmMapedFileEnable debugLockEnable
diskFallRecorded transientStorePoolSize fastFailIfNoBufferInStorePool enableDLegerCommitLog dLegerGroup
dLegerPeers dLegerSelfId preferredLeaderId isEnableBatchPush enableScheduleMessageStats enableLmq
enableMultiDispatch maxLmqConsumeQueueNum enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit
scheduleAsyncDeliverMaxResendNum2Blocked serverWorkerThreads serverCallbackExecutorThreads
serverSelectorThreads serverOnewaySemaphoreValue serverAsyncSemaphoreValue serverSocketSndBufSize
serverSocketRcvBufSize writeBufferHighWaterMark writeBufferLowWaterMark serverSocketBacklog
serverPooledByteBufAllocatorEnable useEpollNativeSelector clientWorkerThreads
clientCallbackExecutorThreads clientOnewaySemaphoreValue clientAsyncSemaphoreValue
connectTimeoutMillis channelNotActiveInterval clientChannelMaxIdleTimeSeconds clientSocketSndBufSize
clientSocketRcvBufSize clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout useTLS
productEnvName
"""
INERT_ELSEWHERE = frozenset(ELSEWHERE.split())
