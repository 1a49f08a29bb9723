"""What users do with the client, against this project's broker. `make peer` plays the same against Java's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.suite.stories import STORIES, Story, play
from tests.client.suite.world import SETTINGS, World
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("suite")
    with ServerProcess(directory, **SETTINGS) as server:
        yield World(server.namesrv, directory)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_against_this_broker(story: Story, world: World) -> None:
    play(story, world)
