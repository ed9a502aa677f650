"""What a run does for ``tune`` beside its training steps: asks for plans, turns knobs, and writes down each move first."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.core.measures.time_split import TimeSplit
from asyncrl.core.recipe.knobs import Setting
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.tune import DEPTH, RUNNING
from asyncrl.core.tuning.controller import Foreseen
from asyncrl.core.tuning.moves import Changed, Judged, Moved
from asyncrl.run import launch
from asyncrl.run.control import RunControl
from asyncrl.run.early_end import EarlyEnd
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.measure_file import StepMeasure
from asyncrl.run.recipe.compose import compose
from asyncrl.run.recorder import RecordedStep
from asyncrl.run.tuning.advice_question import TuneAdvice, ask_advice
from asyncrl.run.tuning.move_journal import MoveJournal
from asyncrl.run.tuning.run_knobs import RunKnobs
from asyncrl.run.tuning.tuner import Tuner

ENGINES = "generators.count"
TUNE = (
    "steps=500",
    "generators.count=1",
    "generators.max_running=16",
    "buffer.pipeline_depth=1",
    "tune={knobs: {generators.count: [1, 2], buffer.pipeline_depth: [1, 2], generators.max_running: [8, 32]}, every: 4}",
)


class World:
    """Pools and buffer of a run whose rate is its engines; ``events`` are what was done, and what was written down, in order."""

    def __init__(self, folder: Path) -> None:
        recipe = compose("quickstart", [*TUNE, f"run_dir={folder}"])
        self.folder = RunFolder.create(recipe)
        self.recipe: Recipe = compose(str(self.folder.recipe))
        self.sizes, self.depth, self.settled = {"generators": 1}, 1, True
        self.notes: list[str] = []
        self.logged: list[dict[str, float]] = []
        self.asked: list[Sequence[Setting]] = []
        self.why, self.room, self.step = "", 2, 0
        self.written_when_turned: list[int] = []

    async def begin(self) -> "World":
        control = RunControl(self.recipe, self.folder, EarlyEnd(print))
        control.begin(self, print)
        assert self.recipe.tune is not None
        self.knobs = RunKnobs(self.recipe.tune.knobs, control, self, self)
        self.tuner = Tuner(self.recipe, self.knobs, self.folder, "cpu", self.notes.append, self._log, self._ask)
        await self.tuner.begin()
        return self

    def _log(self, step: int, values: dict[str, float]) -> None:
        self.logged.append(values)

    async def _ask(self, run: Path, since: int, settings: Sequence[Setting]) -> TuneAdvice:
        self.asked.append(settings)
        if self.why:
            return TuneAdvice(why=self.why)
        return TuneAdvice([Foreseen(each, 1000.0 * each[ENGINES], 1.0) for each in settings])

    # the pools, and the buffer
    async def scale(self, pool: str, size: int) -> str:
        self.written_when_turned.append(len(MoveJournal(self.folder.tuning).read()))
        if size > self.room:
            raise RecipeError(pool, "no node has room for one more engine", "free some")
        self.sizes[pool] = size
        return "coming up"

    async def bound(self, pools: Sequence[str], episodes: int) -> None:
        self.bounded = (list(pools), episodes)

    async def statistics(self) -> "World":
        return self

    async def pace(self, depth: int) -> None:
        self.depth = depth

    async def run(self, steps: int, until: Callable[[], bool] = lambda: False) -> "World":
        for _ in range(steps):
            if until():
                break
            self.step += 1
            time = TimeSplit(seconds=1.0, trained_tokens=1000 * self.sizes["generators"] + self.step % 2, trajectories=10)
            measure = StepMeasure(
                step=self.step,
                time=time,
                rows=10,
                computed_tokens=10,
                delivery_s=None,
                pause_s=0.0,
                staleness_mean=1.0,
                staleness_max=1,
                masked=0,
                filtered=0,
                complete=1,
                depth=self.depth,
                engines=1,
                cores=1,
                device="cpu",
            )
            await self.tuner.step(RecordedStep(measure, usual=True, sample_size=0.9, clip_share=0.0))
            for _ in range(5):
                await asyncio.sleep(0)
        return self

    @property
    def lines(self) -> list[object]:
        return list(MoveJournal(self.folder.tuning).read())


async def test_a_move_is_written_down_made_measured_and_told(tmp_path: Path) -> None:
    world = await (await World(tmp_path).begin()).run(60)
    assert world.sizes == {"generators": 2}
    assert compose(str(world.folder.recipe)).generators.count == 2, "a resume begins with it"
    moved, judged, _ = world.lines
    assert isinstance(moved, Moved)
    assert isinstance(judged, Judged)
    assert world.written_when_turned == [1], "before it was made"
    assert world.notes[:2] == [
        "tune: generators.count 1 -> 2 is tried: the plan fitted to the last steps foresees 2.00x",
        "tune: generators.count 1 -> 2 is kept: it brought 2.00x (2.00x was foreseen)",
    ]
    assert world.logged == [{"tune/foreseen": 2.0, "tune/brought": pytest.approx(2.0, rel=1e-3)}]
    assert {ENGINES: 1, DEPTH: 2, RUNNING: 16} in world.asked[0]
    await world.tuner.close()


async def test_what_the_run_refuses_is_taken_back_and_the_run_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.room = 1
    await (await world.begin()).run(60)
    assert world.sizes == {"generators": 1}
    assert "generators: no node has room for one more engine; free some" in world.notes[1]


async def test_what_a_person_scales_while_a_plan_is_made_stays(tmp_path: Path) -> None:
    world = await World(tmp_path).begin()
    await world.run(20, until=lambda: bool(world.asked))
    world.sizes["generators"] = 4
    await world.run(1)
    assert (world.sizes, world.depth) == ({"generators": 4}, 1)
    assert world.notes == [
        "tune: goes on from generators.count 4, buffer.pipeline_depth 1, generators.max_running 16: "
        "somebody has changed the setting meanwhile"
    ]
    await world.tuner.close()


async def test_a_knob_that_somebody_has_just_turned_is_left_alone(tmp_path: Path) -> None:
    """The engine of a move is to come up, and before the pools are asked for it, a person asks for another number."""
    world = await World(tmp_path).begin()
    act, seen = world.tuner._act, []

    async def late() -> None:
        await act()
        if world.lines and not seen:
            seen.append(True)
            world.sizes["generators"] = 5

    world.tuner._act = late  # type: ignore[method-assign]
    await world.run(40, until=lambda: len(world.lines) > 1)
    assert world.sizes == {"generators": 5}
    assert [type(line) for line in world.lines] == [Moved, Judged, Changed]
    await world.tuner.close()


async def test_a_full_disk_ends_neither_the_run_nor_a_move_of_max_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    world = await World(tmp_path).begin()
    control = RunControl(world.recipe, world.folder, EarlyEnd(print))
    control.begin(world, print)
    monkeypatch.setattr(world.folder, "keep_recipe", refuse)
    await control.bound(32)
    assert (world.bounded, control.at_once) == ((["generators"], 32), 32)


async def test_without_room_for_a_process_there_is_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*arguments: object, **options: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    answer = await ask_advice(World(tmp_path).folder.path, 0, [{ENGINES: 1}, {ENGINES: 2}])
    assert answer.why.startswith("there is no plan: ")
    assert "annot allocate memory" in answer.why


async def test_why_there_is_no_plan_is_said(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.why = "the plan was not ready in 180 s"
    await (await world.begin()).run(30)
    assert world.notes[0].endswith("buffer.pipeline_depth 1, generators.max_running 16: the plan was not ready in 180 s")


@pytest.mark.parametrize("made", [False, True])
async def test_a_run_killed_in_the_middle_of_a_move_says_at_its_resume_what_becomes_of_it(tmp_path: Path, made: bool) -> None:
    world = await World(tmp_path).begin()
    while not world.lines:
        await world.run(1)
    if not made:
        world.sizes = {"generators": 1}
    await world.tuner.close()
    with world.folder.tuning.open("ab") as journal:
        journal.write(b'{"type":"judged","st')  # cut off by the kill
    said = len(world.notes)
    await world.begin()
    tail = [] if made else ["tune: generators.count 1 -> 2 is taken back: the run ended before it was made"]
    assert world.notes[said:] == tail
    await world.run(60)
    assert world.sizes == {"generators": 2}
    assert [line.kept for line in world.lines if isinstance(line, Judged)] == ([True] if made else [False, True])


async def test_a_journal_that_cannot_be_written_ends_the_tuning_and_not_the_run(tmp_path: Path) -> None:
    world = await World(tmp_path).begin()
    world.folder.tuning.mkdir()
    await world.run(60)
    assert world.sizes == {"generators": 1}
    (note,) = world.notes
    assert note.startswith("tune: turns nothing any more: ")


async def test_how_many_episodes_are_played_at_once_is_changed_in_the_pools_and_in_the_recipe(tmp_path: Path) -> None:
    world = await World(tmp_path).begin()
    control = RunControl(world.recipe, world.folder, EarlyEnd(print))
    control.begin(world, print)
    await control.bound(32)
    assert world.bounded == (["generators"], 32)
    assert compose(str(world.folder.recipe)).generators.max_running == control.at_once == 32


async def test_a_resume_has_the_pipeline_depth_that_was_turned_or_that_a_person_writes(tmp_path: Path) -> None:
    world = await World(tmp_path).begin()
    await world.knobs.turn(DEPTH, 2)
    assert world.depth == compose(str(world.folder.recipe)).buffer.pipeline_depth == 2
    changed = compose(str(world.folder.recipe), ["buffer.pipeline_depth=1"])
    cluster = SimpleNamespace(buffer=world, generators=world)
    recorder, view = SimpleNamespace(device="cpu", log=world._log), SimpleNamespace(note=world.notes.append)
    control = RunControl(changed, world.folder, EarlyEnd(print))
    async with launch._tuner(changed, world.folder, cluster, control, recorder, view):  # type: ignore[arg-type]
        assert world.depth == 1


async def test_a_depth_that_moves_by_itself_stays_auto_in_the_recipe(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.recipe = compose(str(world.folder.recipe), ["buffer.pipeline_depth=auto"])
    world.folder.keep_recipe(world.recipe)
    await world.begin()
    await world.knobs.turn(DEPTH, 2)
    assert (world.depth, compose(str(world.folder.recipe)).buffer.pipeline_depth) == (2, "auto")


async def test_a_process_is_asked_that_may_not_know(tmp_path: Path) -> None:
    folder = World(tmp_path).folder
    answer = await ask_advice(folder.path, 0, [{ENGINES: 1}, {ENGINES: 2}])
    assert not answer.foreseen
    assert "measures.jsonl" in answer.why


def test_lines_of_another_kind_count_as_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = MoveJournal(tmp_path / "tuning.jsonl")
    assert journal.read() == []
    line = Judged(3, ENGINES, 1, 2, 1.5, 1.4, kept=True)
    journal.append(line)
    (tmp_path / "tuning.jsonl").open("ab").write(msgspec.json.encode({"type": "danced"}) + b"\n")
    assert journal.read() == [line]
    assert "line 2 of" in caplog.text
