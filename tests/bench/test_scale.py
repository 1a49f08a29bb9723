"""The simulated cluster of the scale benchmark: as large as it says, and no dearer for each broker than a small one."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import scale

BROKERS = 200
TOPICS = 10_000


def test_two_hundred_brokers_and_ten_thousand_topics_at_the_name_server() -> None:
    side = scale.NameServerSide(BROKERS)
    assert side.topics == TOPICS and side.routes.broker_count() == BROKERS
    for topic in ("topic-00000", "topic-05000", "topic-09999"):
        route = side.routes.route(topic)
        assert route is not None
        names = {queue["brokerName"] for queue in route["queueDatas"]}  # type: ignore[attr-defined]
        assert len(names) == scale.GROUPS_PER_TOPIC
        addresses = [each["brokerAddrs"] for each in route["brokerDatas"]]  # type: ignore[attr-defined]
        assert [sorted(each) for each in addresses] == [[0, 1]] * scale.GROUPS_PER_TOPIC
    generation = side.routes.generation
    for frame in side.requests:
        side.register(frame)
    assert side.routes.generation == generation, "nothing has changed, so nothing is told anew"
    assert sorted(side.routes.topic_list()) == [f"topic-{number:05}" for number in range(TOPICS)]


def test_two_hundred_brokers_at_the_controller_and_half_of_the_masters_die() -> None:
    side = scale.ControllerSide(BROKERS)
    side.live(3 * scale.LEASE_MS)
    views = side.machine.views(side.now_ms)
    assert len(views) == BROKERS // 2
    assert all((view.master, view.epoch, view.in_sync) == (1, 1, [1, 2]) for view in views)
    assert len(side.machine._deadlines) == BROKERS // 2
    assert side.outage() == BROKERS // 4
    views = side.machine.views(side.now_ms)
    assert sum((view.master, view.epoch, view.in_sync) == (2, 2, [2]) for view in views) == BROKERS // 4


def test_a_heartbeat_costs_the_same_in_a_cluster_ten_times_as_large() -> None:
    """CPU, the best of several rounds; a cost that grew with the cluster would be ten times as high."""
    small, large = scale.measure([20, BROKERS], 3)
    assert large.heartbeat_us < 3 * small.heartbeat_us
    assert large.register_us < 3 * small.register_us


def test_figures_become_a_table_and_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figures = [
        scale.Figures(10, 500, 60, 20, 0.001, 80, 0.3),
        scale.Figures(200, 10_000, 66, 21, 0.021, 78, 3.9),
    ]
    text = scale.markdown(figures, "a setting")
    assert "| 200 | 10,000 | 66 | 78 | 21.0 | 2.1% | 3.9 |" in text
    assert "grows by a factor of 1.05 at the controller and 1.10 at the name server" in text
    picture = tmp_path / "scale.png"
    scale.draw(figures, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
