"""Programs with the official Java client go on through the death of a master, unchanged and with the client's defaults.

By default it asks the name servers for routes every 30 s (`pollNameServerInterval`), and that is how long it may take
to find the new master. A second producer asks every second, to show what that setting is worth.

Needs Java and Maven (the jars come from Maven Central): run by `make peer`.
"""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.chaos.checker import judge, longest_silence
from tests.chaos.harness import GROUP, ChaosCluster, Shape, eventually
from tests.chaos.history import SEND_OK, Answer, Attempt, Delivery, History, Queue
from tests.peer.java_peer import VERSION, build_directory, peer

pytestmark = pytest.mark.peer

NUMBERED = Path(__file__).with_name("Numbered.java")
TOPIC = "Numbered"
LIMIT_S = 60.0


class JavaProgram:
    """Writes into a history what the program prints."""

    def __init__(self, history: History, *words: str) -> None:
        self.history = history
        self.name = words[-1] if words[0] == "consume" else words[3]
        self.acks_at: list[float] = []
        jars = f"{build_directory() / f'peer-{VERSION}'}/*"
        quiet = ["-Drocketmq.client.logUseSlf4j=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
        self._process = subprocess.Popen(
            ["java", "-Xmx256m", *quiet, "-cp", jars, str(NUMBERED), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ready: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self) -> None:
        assert self._ready.get(timeout=LIMIT_S), f"{self.name} did not start"

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.flush()
        assert self._process.wait(LIMIT_S) == 0
        self._reader.join(LIMIT_S)
        self._process.stdin.close()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._take(line.rstrip("\n").split("\t"))
        self._ready.put(False)

    def _take(self, words: list[str]) -> None:
        if words == ["ready"]:
            self._ready.put(True)
        elif words[0] == "try" and len(words) == 3:
            # The client tries twice more by itself, so a message may be stored more than once.
            self.history.attempts.append(Attempt(_seconds(words[1]), words[2], self.name, resends=True))
        elif words[0] == "end" and len(words) == 6:
            _, nanos, key, status, queue_id, offset = words
            place = Queue(TOPIC, GROUP, int(queue_id)) if int(queue_id) >= 0 else None
            self.history.answers.append(Answer(_seconds(nanos), key, status, place, int(offset)))
            if status == SEND_OK:
                self.acks_at.append(_seconds(nanos))
        elif words[0] == "got" and len(words) == 5:
            _, nanos, key, queue_id, offset = words
            place = Queue(TOPIC, GROUP, int(queue_id))
            self.history.deliveries.append(Delivery(_seconds(nanos), key, place, int(offset), self.name))


def _seconds(nanos: str) -> float:
    return int(nanos) / 1e9  # of the clock that time.monotonic() reads, too


def test_java_programs_go_on_through_the_death_of_a_master(tmp_path: Path) -> None:
    peer("mqadmin", "help")  # the first call fetches the jars
    history = History()

    def wait(condition: Callable[[], bool], what: str) -> None:
        eventually(condition, what, cluster.explain, LIMIT_S)

    with ChaosCluster(tmp_path, Shape(brokers=3)) as cluster:
        cluster.create_topic(TOPIC, 4)
        programs = [
            JavaProgram(history, "consume", cluster.namesrv, TOPIC, "numbered"),
            JavaProgram(history, "send", cluster.namesrv, TOPIC, "standard"),
            JavaProgram(history, "send", cluster.namesrv, TOPIC, "polling", "1000"),
        ]
        try:
            for program in programs:
                program.wait_ready()
            consumer, *producers = programs
            wait(lambda: len(history.deliveries) > 200, "messages arrive")
            wait(lambda: all(len(one.acks_at) > 50 for one in producers), "both producers work")
            master = cluster.require_master()
            killed = time.monotonic()
            master.kill()
            wait(lambda: all(one.acks_at[-1] > killed + 0.5 for one in producers), "the new master is found")
            master.start()
            cluster.wait_whole()
            seen = len(history.acknowledged) + 100
            wait(lambda: len(history.acknowledged) > seen, "work goes on")
            for producer in producers:
                producer.stop()
            sent = {answer.key for answer in history.acknowledged}
            wait(lambda: sent <= {delivery.key for delivery in history.deliveries}, "all arrive")
            consumer.stop()
        finally:
            for program in programs:
                program.end()
    verdict = judge(history, arrives_in_order=False)  # a push consumer's listener runs in many threads
    assert verdict.ok, "\n".join([*verdict.problems, str(verdict)])
    for producer in producers:
        gaps = [end - start for start, end in pairwise(producer.acks_at) if end > killed]
        print(f"java producer, {producer.name}: {max(gaps):.2f} s without SEND_OK")
    group_s = longest_silence(history, GROUP, killed, killed + LIMIT_S)
    print(f"java producers together: {group_s:.2f} s; {verdict}; {verdict.answers}")
