"""The points of a sweep, played by processes that stand in for launches: who runs when, what is resumed, and how it ends."""

import asyncio
import fcntl
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from made_sweep import made_sweep

from asyncrl.core.errors import RecipeError
from asyncrl.sweeps.sweep import Sweep
from asyncrl.sweeps.sweep_folder import PointState, SweepFolder
from asyncrl.sweeps.sweeping import Sweeping, until_over

STAND_IN = Path(__file__).with_name("stand_in.py")


class Played:
    """A sweep in a folder, with what its points are to do."""

    def __init__(self, place: Path, sweep: Sweep | None = None, **script: list[str]) -> None:
        self.place, self.sweep = place, sweep or made_sweep(launched_in=str(place))
        self.folder = SweepFolder.create(str(place / "runs"), self.sweep, {each.name: "" for each in self.sweep.points})
        self.notes: list[str] = []
        self.then(**script)

    def then(self, **script: list[str]) -> None:
        """What points do from now on: lists of acts, by setting and seed, as ``_1_0``."""
        acts = {key.strip("_").replace("_", "."): value for key, value in script.items()}
        (self.place / "script.json").write_text(json.dumps(acts))
        (self.place / "calls.jsonl").write_text("")

    def sweeping(self, devices: tuple[str | None, ...] = (None,)) -> Sweeping:
        def launch(arguments: object) -> list[str]:
            return [sys.executable, "-S", str(STAND_IN), str(self.place), *arguments]  # type: ignore[misc]

        return Sweeping(self.folder, self.sweep, launch, devices, self.notes.append)

    def run(self, devices: tuple[str | None, ...] = (None,)) -> None:
        async def to_end() -> None:
            async with asyncio.timeout(60):
                await self.sweeping(devices).run()

        asyncio.run(to_end())

    @property
    def calls(self) -> list[dict]:
        return [json.loads(line) for line in (self.place / "calls.jsonl").read_text().splitlines()]

    @property
    def states(self) -> list[PointState]:
        return [self.folder.state_of(point)[0] for point in self.sweep.points]


async def until(seen: Callable[[], bool]) -> None:
    """Wait for what other processes do, of which no event tells."""
    while not seen():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def test_a_point_that_fails_does_not_end_the_others(tmp_path):
    played = Played(tmp_path, _1_0=["fail"], _0_1=["refuse"], _1_1=["vanish"])
    played.run()
    assert [call["point"] for call in played.calls] == ["0.0", "1.0", "0.1", "1.1"]
    assert played.states == [PointState.COMPLETED, PointState.FAILED, PointState.MISSING, PointState.KILLED]
    assert {call["cwd"] for call in played.calls} == {str(tmp_path)}
    assert "max_staleness=4 seed=0 failed: an engine died" in played.notes
    assert "max_staleness=0 seed=1 was not begun: there is no way to go on with it" in played.notes
    assert any(note.startswith("max_staleness=0 seed=0 completed in") and "evaluation 0.500" in note for note in played.notes)


def test_a_point_that_the_system_refuses_does_not_end_the_others(tmp_path):
    played = Played(tmp_path)
    first = played.sweep.points[0]
    played.folder.log_of(first).mkdir()
    played.run(devices=(None, None))
    assert played.states == [PointState.MISSING] + [PointState.COMPLETED] * 3
    assert any(note.startswith("max_staleness=0 seed=0 could not be run: ") and "s a directory" in note for note in played.notes)


def test_a_resume_goes_on_with_what_is_missing_and_repeats_what_cannot_be_resumed(tmp_path):
    played = Played(tmp_path, _0_0=["complete"], _1_0=["vanish"], _0_1=["fail"], _1_1=["refuse"])
    played.run()
    played.then(_1_0=["complete"], _0_1=["refuse", "complete"])
    played.run()
    assert [(call["point"], call["resumed"], call["act"]) for call in played.calls] == [
        ("1.0", True, "complete"),
        ("0.1", True, "refuse"),
        ("0.1", False, "complete"),
        ("1.1", False, "complete"),
    ]
    assert set(played.states) == {PointState.COMPLETED}
    assert "1 of 4 points have completed before" in played.notes
    repeated = "max_staleness=0 seed=1 cannot be resumed (there is no way to go on with it), and is run again"
    assert repeated in played.notes
    assert len(list(played.folder.path.glob("0-max_staleness-0-seed-1-*"))) == 2
    played.then()
    played.run()
    assert played.calls == []


def test_points_run_side_by_side_each_with_its_own_gpus(tmp_path):
    played = Played(tmp_path, _0_0=["wait"], _1_0=["wait"])

    async def both_run() -> None:
        async with asyncio.timeout(60):
            sweeping = played.sweeping(("0,1", "2,3"))
            running = asyncio.create_task(sweeping.run())
            await until(lambda: len(list(played.folder.path.glob("*/begun"))) == 2)
            assert "max_staleness=0 seed=0" in sweeping.progress
            assert sweeping.progress.endswith("(2 to go)")
            sweeping.stop()
            await running

    asyncio.run(both_run())
    assert {call["gpus"] for call in played.calls} == {"0,1", "2,3"}
    assert played.states[:2] == [PointState.INTERRUPTED, PointState.INTERRUPTED]
    assert played.states[2:] == [PointState.MISSING, PointState.MISSING]  # none begins once it was stopped


def test_a_run_that_a_killed_sweep_left_is_waited_for_and_not_begun_twice(tmp_path):
    played = Played(tmp_path, _0_0=["vanish"])
    played.run()
    run = played.folder.run_of(played.sweep.points[0])
    assert run is not None
    played.then(_0_0=["complete"])

    async def held_for_a_while() -> None:
        lock = (run.path / "driver.lock").open()
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with asyncio.timeout(60):
            going_on = asyncio.create_task(until_over(played.sweeping(), lambda text: None, 0.05))
            await until(lambda: "max_staleness=0 seed=0 is still ending" in played.notes)
            assert played.calls == []
            lock.close()
            await going_on

    asyncio.run(held_for_a_while())
    assert [(call["point"], call["resumed"]) for call in played.calls] == [("0.0", True)]


def test_a_run_that_does_not_end_is_left_alone(tmp_path, monkeypatch):
    played = Played(tmp_path, _0_0=["vanish"])
    played.run()
    monkeypatch.setattr("asyncrl.sweeps.sweeping.END_S", 0.1)
    run = played.folder.run_of(played.sweep.points[0])
    assert run is not None
    played.then()
    with (run.path / "driver.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        played.run()
    assert played.calls == []
    assert any("is still running, by a process of its own" in note for note in played.notes)


def test_one_process_drives_a_sweep(tmp_path):
    played = Played(tmp_path)
    other = SweepFolder(played.folder.path).driven()
    with played.folder.driven(), pytest.raises(RecipeError, match="another process is still running the sweep"), other:
        pass


def test_the_newest_run_of_a_point_counts(tmp_path):
    played = Played(tmp_path)
    point = played.sweep.points[0]
    made = [
        "20260101T000000Z-2",
        "20260101T000000Z-10",
        "20250101T000000Z",
        "20260101T000000Z",
        "and-others",
        "9-20270101T000000Z",
    ]
    for name in made:
        (played.folder.path / f"{point.name}-{name}").mkdir()
        (played.folder.path / f"{point.name}-{name}" / "recipe.yaml").touch()
    (played.folder.path / f"{point.name}-20260202T000000Z").mkdir()  # killed while it was made
    found = played.folder.run_of(point)
    assert found is not None
    assert found.path.name == f"{point.name}-20260101T000000Z-10"


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 2}', b'{"format": 1, "sweep": {}}'])
def test_a_damaged_definition_is_told(tmp_path, content):
    played = Played(tmp_path)
    played.folder.definition.write_bytes(content)
    with pytest.raises(Exception, match=r"sweep\.json"):
        played.folder.read()
    assert SweepFolder.is_one(played.folder.path)


def test_a_definition_is_read_back(tmp_path):
    played = Played(tmp_path)
    assert SweepFolder.find(played.folder.path).read() == played.sweep
    with pytest.raises(RecipeError, match=r"it has no sweep\.json"):
        SweepFolder.find(tmp_path)
