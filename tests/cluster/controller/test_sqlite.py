"""The SQLite engine: compare and swap, one controller per file, and what a killed process leaves behind."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import msgspec
import pytest

from orbitmq.cluster.controller.engines import EngineFailed
from orbitmq.cluster.controller.engines.sqlite import SqliteEngine
from orbitmq.cluster.controller.state import GroupState, Replica, StateDamaged, decode_state, encode_state


def group(broker: str = "b", **changes: object) -> GroupState:
    state = GroupState(
        cluster="C",
        broker=broker,
        replicas={1: Replica("t1", "h:1", "h:2"), 2: Replica("t2", "h:3", "h:4")},
        master=1,
        master_run="r",
        epoch=1,
        in_sync=(1,),
        version=1,
        next_number=3,
    )
    return msgspec.structs.replace(state, **changes)


def test_states_are_swapped_by_revision_and_survive(tmp_path: Path) -> None:
    async def main() -> None:
        engine = SqliteEngine(str(tmp_path / "c.db"))
        await engine.open()
        assert await engine.load_all() == {}
        assert await engine.load("b") is None
        first = await engine.swap("b", group(), None)
        assert first is not None
        assert await engine.swap("b", group(epoch=9), None) is None, "it exists already"
        second = await engine.swap("b", group(epoch=2), first)
        assert second is not None and second != first
        assert await engine.swap("b", group(epoch=3), first) is None, "that revision is gone"
        assert await engine.swap("unknown", group("unknown"), 5) is None
        await engine.swap("b2", group("b2", in_sync=(1, 2)), None)
        await engine.close()
        again = SqliteEngine(str(tmp_path / "c.db"))
        await again.open()
        known = await again.load_all()
        assert known == {"b": (group(epoch=2), second), "b2": (group("b2", in_sync=(1, 2)), 1)}
        assert await again.load("b") == known["b"]
        await again.close()

    asyncio.run(main())


def test_many_swaps_at_once_each_get_their_own_outcome(tmp_path: Path) -> None:
    async def main() -> None:
        engine = SqliteEngine(str(tmp_path / "c.db"))
        await engine.open()
        names = [f"b{number}" for number in range(200)]
        made = await asyncio.gather(*(engine.swap(name, group(name), None) for name in names))
        assert made == [1] * 200
        racing = await asyncio.gather(*(engine.swap("b7", group("b7", epoch=n), 1) for n in range(2, 12)))
        assert [each for each in racing if each is not None] == [2], "one of them, and the others know it"
        stored = await engine.load("b7")
        assert stored is not None and stored.state.epoch == 2 + racing.index(2)
        await engine.close()

    asyncio.run(main())


def test_a_second_controller_on_the_file_does_not_start(tmp_path: Path) -> None:
    async def main() -> None:
        engine = SqliteEngine(str(tmp_path / "c.db"))
        await engine.open()
        second = SqliteEngine(str(tmp_path / "c.db"))
        with pytest.raises(EngineFailed, match=r"another controller runs on it.*--etcd"):
            await second.open()
        await second.close()
        assert await engine.swap("b", group(), None) == 1
        await engine.close()
        third = SqliteEngine(str(tmp_path / "c.db"))
        await third.open()
        assert list(await third.load_all()) == ["b"]
        await third.close()

    asyncio.run(main())


def test_a_failed_commit_is_told_to_everybody_in_it(tmp_path: Path) -> None:
    async def main() -> None:
        engine = SqliteEngine(str(tmp_path / "c.db"))
        await engine.open()
        await engine.swap("b", group(), None)
        await engine._do(lambda: engine._opened.execute("PRAGMA query_only=ON"))
        tries = [engine.swap(name, group(name), None) for name in ("x", "y")]
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [EngineFailed, EngineFailed]
        assert "c.db" in str(outcomes[0])
        await engine._do(lambda: engine._opened.execute("PRAGMA query_only=OFF"))
        assert await engine.swap("x", group("x"), None) == 1
        await engine.close()

    asyncio.run(main())


def test_a_directory_that_is_no_place_for_a_file_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        engine = SqliteEngine(str(tmp_path / "nowhere" / "c.db"))
        with pytest.raises(EngineFailed, match=r"nowhere.*look at the disk"):
            await engine.open()
        await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "cannot be read"),
        (b'{"cluster":"C"}', "cannot be read"),
        (encode_state(group("other")), "that of 'other'"),
        (encode_state(group(in_sync=(2,))), "master 1 is not in its in-sync set"),
        (encode_state(group(in_sync=(1, 9))), "has \\[9\\]"),
        (encode_state(group(next_number=2)), "next number 2"),
        (encode_state(group(format=2)), "format 2"),
    ],
)
def test_a_state_that_makes_no_sense_is_not_guessed_at(data: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(StateDamaged, match=why):
        decode_state("b", data)

    async def main() -> None:
        path = str(tmp_path / "c.db")
        engine = SqliteEngine(path)
        await engine.open()
        await engine.swap("b", group(), None)
        await engine.close()
        with sqlite3.connect(path) as direct:
            direct.execute("UPDATE groups SET state = ?", (data,))
        direct.close()
        engine = SqliteEngine(path)
        await engine.open()
        with pytest.raises(StateDamaged, match=why):
            await engine.load_all()
        await engine.close()

    asyncio.run(main())
