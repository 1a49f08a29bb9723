"""What users do with the client, against the real Java broker: the same scenarios as against this project's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.suite.stories import STORIES, Story, play
from tests.client.suite.world import SETTINGS, World
from tests.peer.java_peer import JavaPeer

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    # Short: the path goes into Java's configuration and command lines.
    with tempfile.TemporaryDirectory(prefix="orbitmq-peer-") as root:
        directory = Path(root)
        with JavaPeer(directory / "store", SETTINGS) as java:
            java.start()
            yield World(java.namesrv, directory)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_against_the_java_broker(story: Story, world: World) -> None:
    play(story, world)
