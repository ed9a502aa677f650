"""The training pump with its publisher, recorder and evaluator, in virtual time and without processes."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import virtual_time

from asyncrl.core.batch import Batch
from asyncrl.core.errors import WeightMismatch
from asyncrl.core.ids import PolicyVersion, TaskId, WorkerId
from asyncrl.core.measures.metrics import combine
from asyncrl.core.measures.time_split import LEARNER_TIME, GeneratorTime, LearnerTime, TimeSplit
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.generators import MAIN_POOL
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.generators.completion import ScoredRow
from asyncrl.generators.evaluation import EvaluationResult, HeldOutTask
from asyncrl.learners.step_report import StepReport
from asyncrl.run.early_end import EarlyEnd
from asyncrl.run.evaluator import Evaluator
from asyncrl.run.folder.step_log import StepLog
from asyncrl.run.measures.step_readings import TrainedStep
from asyncrl.run.measures.totals import Totals
from asyncrl.run.pool.evaluation import Evaluation
from asyncrl.run.pool.probe_scores import EngineScores, LearnerScores
from asyncrl.run.publisher import Publisher
from asyncrl.run.recipe.compose import compose
from asyncrl.run.train_pump import Learning, train_pump
from asyncrl.run.weight_probe import Probe

TAKE_S, TRAIN_S, WRITE_S, DELIVER_S, CHECKPOINT_S = 1.0, 10.0, 2.0, 7.0, 6.0
PARTS = LearnerTime(data=1.0, forward=3.0, backward=4.0, optimizer=2.0)


class World:
    """Cluster, checkpointer and recorder in one, each doing nothing but taking its time. ``events`` holds what began and ended,
    and when."""

    def __init__(self, recipe: Recipe, *, published: int = 0) -> None:
        self.recipe, self.totals = recipe, Totals()
        self.events: list[tuple[float, str]] = []
        self.recorded: list[tuple[int, LearnerTime, float | None]] = []
        self.step_ended: list[float] = []
        self.evaluated: list[int] = []
        self.skipped: list[int] = []
        self.late_by, self.enough_at, self.early = 0, 0, EarlyEnd(self.say)
        self.moving = True
        self.same_weights = False
        self.evaluation_s, self.deliver_s, self.checkpoint_s, self.probe_s = 5.0, DELIVER_S, CHECKPOINT_S, 1.0
        self.now = asyncio.get_running_loop().time
        self.probe = Probe(recipe, self, self)
        self.log = StepLog(Path("no-such-folder/steps.jsonl"))
        self.publisher = Publisher(self, self, self, self.totals, PolicyVersion(published), self.now)

    def say(self, what: str) -> None:
        self.events.append((self.now(), what))

    def when(self, what: str) -> float:
        (time,) = [time for time, said in self.events if said == what]
        return time

    async def _for(self, seconds: float, what: str) -> None:
        self.say(f"begin {what}")
        await asyncio.sleep(seconds)
        self.say(f"end {what}")

    # the cluster
    async def take(self, version: PolicyVersion) -> Batch:
        await self._for(TAKE_S, f"take {version}")
        return Batch(version, version, ())

    async def train(self, batch: Batch) -> list[StepReport]:
        await self._for(TRAIN_S, f"train {batch.version}")
        mute, reporter = StepReport([], weights_moved=self.moving), StepReport([], weights_moved=self.moving, time=PARTS)
        return [mute, reporter]

    async def trained(self, version: PolicyVersion) -> None:
        self.say(f"trained {version}")

    async def may_write(self) -> frozenset[PolicyVersion]:
        return frozenset()

    async def write_weights(self, version: PolicyVersion, read: Collection[PolicyVersion]) -> Publication:
        await self._for(WRITE_S, f"write {version}")
        fingerprint = 1 if self.same_weights else version
        return Publication(version=version, files=(), shards=(), fingerprints=(), fingerprint=fingerprint)

    async def deliver(self, publication: Publication) -> None:
        await self._for(self.deliver_s, f"deliver {publication.version}")

    async def score(self, rows: Sequence[Sequence[int]] | None = None, turn: int = 0) -> LearnerScores | EngineScores:
        """Both sides of a probe. The ranks are asked without rows."""
        if rows is None:
            self.say("asked the ranks for scores")
            return LearnerScores(PolicyVersion(1), ((1, 2),), (np.zeros(1),))
        await self._for(self.probe_s, "score")
        return EngineScores(WorkerId("generator-0"), MAIN_POOL, [ScoredRow(PolicyVersion(1), np.zeros(1))])

    async def advance(self, version: PolicyVersion) -> None:
        self.say(f"published {version}")

    async def evaluate(self, tasks: Sequence[HeldOutTask], version: PolicyVersion, *, pinned: bool) -> Evaluation:
        await self._for(self.evaluation_s, "evaluation")
        return Evaluation(PolicyVersion(version + self.late_by), [])

    # the checkpointer
    async def room(self) -> None:
        pass

    async def begin(self, version: PolicyVersion, *, last: bool) -> None:
        self.say(f"begin {'last ' if last else ''}checkpoint {version}")
        self._checkpoint = asyncio.create_task(asyncio.sleep(self.checkpoint_s))

    async def finish(self) -> None:
        if (writing := getattr(self, "_checkpoint", None)) is not None:
            await writing
            del self._checkpoint
            self.say("end checkpoint")

    def note(self) -> None:
        self.say("totals noted")

    # the recorder
    async def step(self, step: int, done: TrainedStep) -> None:
        self.recorded.append((step, done.time, done.delivery_s))
        self.step_ended.append(self.now())
        if step == self.enough_at:
            self.early.ask("enough", trains=True)

    def evaluation(self, version: PolicyVersion, results: Sequence[EvaluationResult], members: Mapping[TaskId, str]) -> None:
        self.evaluated.append(version)

    def skip_evaluation(self, version: PolicyVersion) -> None:
        self.skipped.append(version)

    # the files of other nodes
    async def bring(self) -> None:
        self.say("files of other nodes brought")

    async def pump(self, begin: int = 0) -> None:
        task = HeldOutTask(Task(id=TaskId("t"), prompt="?"), "s")
        evaluator = Evaluator(self, [task], False, self, self, Path("no-such-folder"), self)
        learning = Learning(self, self, self.publisher, self, self.probe, self.log, self.now)
        self.last = await train_pump(PolicyVersion(begin), self.recipe, learning, evaluator, self, self.early)


def recipe(steps: int, every: int = 100) -> Recipe:
    return compose("quickstart", [f"steps={steps}", f"evaluation.every={every}", "learner.warmup_steps=1"])


def play(steps: int, *, every: int = 100, published: int = 0, begin: int = 0, **settings: object) -> World:
    async def main() -> World:
        world = World(recipe(steps, every), published=published)
        for name, value in settings.items():
            setattr(world, name, value)
        await world.pump(begin)
        return world

    return virtual_time.run(main())


def test_a_run_that_is_to_end_early_ends_as_one_with_fewer_steps():
    world, shorter = play(30, enough_at=3), play(3)
    assert world.last == shorter.last == 3
    assert [what for _, what in world.events if "checkpoint" in what][-2:] == ["begin last checkpoint 3", "end checkpoint"]
    assert world.when("published 3") == shorter.when("published 3")
    assert "take 3" not in {what.removeprefix("begin ") for _, what in world.events}


def test_a_publication_travels_while_the_next_batch_is_trained():
    world = play(3)
    assert world.when("begin train 1") < world.when("end deliver 1") < world.when("end train 1")
    assert world.when("begin deliver 1") == world.when("end write 1")
    for step, times, delivery_s in world.recorded:
        assert (times.training, times.writing) == (TRAIN_S, WRITE_S)
        # The delivery that a step reports is that of the step before.
        assert delivery_s == (None if step == 1 else DELIVER_S)
    assert world.totals.versions_published == 3
    assert world.publisher.published_version == 3


def test_there_is_never_more_than_one_publication_on_the_way():
    world = play(4)
    on_the_way = 0
    for _, said in world.events:
        on_the_way += said.startswith("begin deliver")
        on_the_way -= said.startswith("published")
        assert on_the_way <= 1
    for version in (1, 2, 3):
        assert world.when(f"published {version}") <= world.when(f"begin write {version + 1}")


def test_the_pump_ends_when_the_last_version_is_delivered():
    world = play(2)
    assert world.events[-1][0] == world.when("published 2") == world.when("end deliver 2")


def test_the_buffer_hears_that_a_batch_was_trained_before_its_weights_are_written():
    world = play(2)
    for version in (0, 1):
        assert world.when(f"end train {version}") == world.when(f"trained {version}") <= world.when(f"begin write {version + 1}")


def test_a_checkpoint_is_written_beside_the_next_step_and_finished_before_the_one_after():
    world = play(3)
    begun = [time for time, said in world.events if said.startswith("begin checkpoint")]
    ended = [time for time, said in world.events if said == "end checkpoint"]
    assert len(begun) == len(ended) == 3
    # Step 2 trains for longer than the checkpoint takes, so nothing waits for it.
    assert ended[0] == world.when("end train 1") < begun[1]
    # The pump ends when the last version is delivered and the last checkpoint is on disk, whichever is later.
    assert ended[2] == max(begun[2] + CHECKPOINT_S, world.when("published 3"))


def test_a_learner_that_writes_unchanged_weights_is_refused():
    with pytest.RaisesGroup(pytest.RaisesExc(WeightMismatch, match="version 2 has the fingerprint of version 1")):
        play(3, same_weights=True)


def test_unchanged_weights_are_no_fault_where_nothing_was_to_move_them():
    assert play(3, same_weights=True, moving=False).totals.versions_published == 3


def test_a_resumed_learner_publishes_nothing_before_it_has_reached_the_published_version():
    world = play(6, published=4, begin=2)
    assert [said for _, said in world.events if said.startswith("begin write")] == [f"begin write {v}" for v in (4, 5, 6)]
    assert [said for _, said in world.events if said.startswith("published")] == ["published 5", "published 6"]
    assert [step for step, _, _ in world.recorded] == [3, 4, 5, 6]


def test_a_version_is_evaluated_once_all_engines_have_it():
    world = play(4, every=2)
    assert world.evaluated == [2]
    assert world.when("begin evaluation") == world.when("published 2")
    assert world.when("totals noted") == world.when("end evaluation")


def test_an_evaluation_that_takes_long_holds_up_no_step_and_the_next_one_is_left_out():
    quick, slow = play(8, every=2), play(8, every=2, evaluation_s=30.0)
    assert quick.evaluated == [2, 4, 6]
    assert slow.evaluated == [2, 6]
    assert (quick.skipped, slow.skipped) == ([], [4])
    assert quick.when("end train 7") == slow.when("end train 7")


def test_an_evaluation_that_later_versions_played_stands_for_them():
    world = play(6, every=2, evaluation_s=50.0, late_by=3)
    assert world.evaluated == [5]
    assert world.skipped == [4, 2]


def test_an_evaluation_that_never_ends_is_ended_with_the_run_that_gives_it_up():
    """Its own call has a deadline; until then the pump trains on, and whoever gives the run up ends both."""

    async def main() -> World:
        world = World(recipe(4, 2))
        world.evaluation_s = 1e9
        pump = asyncio.create_task(world.pump())
        await asyncio.sleep(1000.0)
        assert world.when("published 4") < 1000.0
        assert not pump.done()
        pump.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pump
        return world

    assert virtual_time.run(main()).evaluated == []


def test_what_fails_beside_a_step_ends_the_pump_at_once():
    class Broken(World):
        async def deliver(self, publication: Publication) -> None:
            await asyncio.sleep(0.5)
            raise WeightMismatch("an engine loaded something else")

    async def main() -> float:
        world = Broken(recipe(3))
        with pytest.RaisesGroup(WeightMismatch):
            await world.pump()
        assert "end take 1" not in [said for _, said in world.events]
        return world.now()

    assert virtual_time.run(main()) == TAKE_S + TRAIN_S + WRITE_S + 0.5


@pytest.mark.parametrize("slow", [{}, {"checkpoint_s": 30.0}, {"deliver_s": 30.0}])
def test_what_the_learner_spends_its_time_on_adds_up_to_the_time_between_two_steps(slow):
    world = play(5, **slow)
    for (_, times, _), (began, ended) in zip(world.recorded[1:], pairwise(world.step_ended), strict=True):
        found = combine(TimeSplit(seconds=ended - began, learner=times).readings(GeneratorTime()))
        found = {name: value for name, value in found.items() if name.startswith(LEARNER_TIME)}
        assert sum(found.values()) == pytest.approx(1.0, abs=0.02)
        assert found["time/learner/other"] == pytest.approx(0.0, abs=0.02), "every second of the pump has a name"
        assert found["time/learner/backward"] == pytest.approx(PARTS.backward / (ended - began))
    longest = {"checkpoint_s": "checkpointing", "deliver_s": "delivering"}.get(next(iter(slow), ""))
    assert longest is None or found[f"time/learner/{longest}"] > 0.4
