"""Runs killed with SIGKILL, or left by their disk, at 200 points, spread over time and over all that is written, and resumed each
time."""

import multiprocessing
import random
from collections import Counter

import crash_run
import msgspec
import pytest
from crash_run import CHECKPOINT_EVERY, Checkpoint, Kill, Paths, logged
from made_buffers import buffer_of, restored

from asyncrl.buffers import commands
from asyncrl.buffers.journal.journal_files import read_journal
from asyncrl.buffers.ledger import TERMINAL
from asyncrl.buffers.payload_store import PayloadStore
from asyncrl.core.measures.buffer_statistics import BufferStatistics
from asyncrl.core.recipe.buffer import BufferConfig, PrioritisedSamplerConfig, ZeroVarianceFilterConfig
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.schema import BatchConfig, DeadlinesConfig, ModelConfig, Recipe

KILLS = 50
"""How often each of the runs is killed."""
GROUPS_PER_STEP = 4
LONGEST_LIFE = 2 * CHECKPOINT_EVERY - 1
"""Steps of one life, but for the last; it gets at most one checkpoint further."""
LONGEST_S = 120.0
"""Seconds after which a life that should have ended hangs."""
STEPS = (KILLS + 2) * CHECKPOINT_EVERY
"""So many that no run is complete before it was killed often enough, however fast the machine."""

POINTS = [
    ("pwritev", ".log", 40, ("before", "torn", "after", "refused")),
    ("pwritev", ".rows", 25, ("before", "torn", "after", "refused")),
    ("pwritev", ".snapshot.making", 2, ("before", "torn", "after", "refused")),
    ("fdatasync", ".snapshot.making", 2, ("before", "after", "refused")),
    ("replace", ".snapshot.making", 2, ("before", "after", "refused")),
    ("unlink", ".log", 2, ("before", "after", "refused")),
    ("unlink", ".rows", 3, ("before", "after", "refused")),
    ("ftruncate", ".rows", 3, ("before", "after", "refused")),
    ("replace", "checkpoint.making", 1, ("before", "after", "refused")),
]
"""A call, the files it is counted on, how often at most before the kill, and when."""


def recipe(**buffer):
    return Recipe(
        name="crash",
        steps=STEPS,
        model=ModelConfig(path="tiny"),
        environment=ClassEnvironmentConfig(name="calculator"),
        batch=BatchConfig(groups_per_step=GROUPS_PER_STEP, group_size=3, min_group=buffer.pop("min_group", None)),
        buffer=BufferConfig(**{"max_failures": 10_000, "filters": (ZeroVarianceFilterConfig(),), **buffer}),
        deadlines=DeadlinesConfig(batch=30.0, lease=20.0),
    )


RECIPES = {
    "masked": recipe(max_staleness=1000),
    "waited for": recipe(max_staleness=2, on_stale="wait"),
    "reused": recipe(max_staleness=1000, max_reuse=3, sampler=PrioritisedSamplerConfig()),
    "dropped": recipe(max_staleness=1, on_stale="drop"),
}


class Life:
    """One process of the run."""

    def __init__(self, recipe, folder, kill):
        self.paths, self.refused = Paths(folder), kill is not None and kill.moment == "refused"
        self.lost_its_disk = False
        self.process = multiprocessing.get_context("fork").Process(target=crash_run.main, args=(recipe, folder, kill))
        self.process.start()

    def ends(self, seconds):
        """Whether it ended by itself, complete; it is killed after ``seconds`` at the latest, but not if its disk is to fail."""
        self.process.join(LONGEST_S if self.refused else seconds)
        hangs = self.process.is_alive()
        self.process.kill()
        self.process.join()
        code = self.process.exitcode
        if self.refused:
            assert not hangs, "it hangs"
        if self.refused and code == 1:
            error = self.paths.error.read_text()
            assert f"Input/output error: '{self.paths.buffer.parent}" in error, error
            self.lost_its_disk = True
            return False
        assert code in (0, -9), self.paths.error.read_text()
        return code == 0


def kill_point(chance):
    """The point at which a run is killed, and the longest time it may live."""
    call, suffix, most, moments = chance.choice(POINTS)
    moment = chance.choice(moments)
    step = LONGEST_LIFE if moment == "refused" else chance.randrange(1, LONGEST_LIFE + 1)
    kill = Kill(step, call, suffix, chance.randint(1, most), moment)
    return kill, chance.choice([chance.uniform(0.01, 0.15), 1.0])


def check_what_is_left(recipe, paths):
    """Check journal and payload of a dead run: nothing that was acknowledged is lost."""
    found = read_journal(paths.journal)
    tasks = crash_run.stream()
    buffer = restored(recipe, tasks, found.snapshot) if found.snapshot is not None else buffer_of(recipe, tasks)
    commands.replay(found.records, buffer)
    check_ledger(buffer.statistics())
    assert buffer.statistics().ledger.tasks.issued == sum(tasks.drawn.values())
    live = list(buffer.groups.live_payload())
    assert len(set(live)) == len(live)
    assert PayloadStore(paths.payload).verify(live) == []
    groups, issued = buffer._state.groups, buffer.statistics().ledger.issued
    for group_id, index in logged(paths.acknowledged):
        assert group_id < issued
        if group_id in groups and groups[group_id].state not in TERMINAL:
            assert index in groups[group_id].records, f"sample {index} of group {group_id} was acknowledged and is lost"


def check_ledger(statistics: BufferStatistics):
    ledger = msgspec.to_builtins(statistics.ledger)
    for counts in (ledger, ledger["trajectories"], ledger["tasks"]):
        states = [count for state, count in counts.items() if isinstance(count, int) and state != "issued"]
        assert counts["issued"] == sum(states)


def run_to_the_end(recipe, folder, kills, seed=0):
    """The number of kills it took, of ``kills`` that were meant to be, and how the run ended."""
    folder.mkdir()
    chance, paths, killed, disks = random.Random(seed), Paths(folder), 0, 0
    while True:
        kill, seconds = kill_point(chance) if killed < kills else (None, 200)
        life = Life(recipe, folder, kill)
        if life.ends(seconds):
            break
        disks += life.lost_its_disk
        assert killed < kills, "it hangs"
        killed += 1
        if paths.journal.exists():
            check_what_is_left(recipe, paths)
    assert disks or not kills, "no life lost its disk"
    statistics = msgspec.json.decode(paths.statistics.read_bytes(), type=BufferStatistics)
    return killed, msgspec.json.decode(paths.checkpoint.read_bytes(), type=Checkpoint), statistics, paths


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_killed_at_fifty_points_ends_as_if_nothing_had_happened(tmp_path, name):
    recipe = RECIPES[name]
    killed, learner, statistics, paths = run_to_the_end(recipe, tmp_path / "killed", KILLS, seed=name)
    assert killed == KILLS
    assert all(lost_trajectories == 0 for _, lost_trajectories, _ in logged(paths.reports))

    # The learner: each version trained one batch, and whenever it was trained again it was the same.
    assert [version for version, _ in learner.lineage] == list(range(recipe.steps))
    weights = {}
    for version, made in logged(paths.trained):
        assert weights.setdefault(version, made) == made, f"version {version} was made twice, differently"
    assert weights[recipe.steps - 1] == learner.weights
    assert len(logged(paths.trained)) > recipe.steps, "some steps were done again"

    # The buffer: all is accounted for, and no group was trained too often.
    check_ledger(statistics)
    uses = Counter(group for _, rows in learner.lineage for group in {group for group, _ in rows})
    assert uses.total() == recipe.steps * GROUPS_PER_STEP
    assert max(uses.values()) <= recipe.buffer.max_reuse
    reusable = statistics.ledger.committed if recipe.buffer.max_reuse > 1 else 0
    assert statistics.ledger.trained <= len(uses) <= statistics.ledger.trained + reusable
    assert PayloadStore(paths.payload).bytes_on_disk() < 50_000, "nothing is left but what the writers had just begun"

    # The tasks: exactly those of a run that nobody killed, which are those that the order of tasks says.
    if name in ("masked", "waited for"):
        _, undisturbed, before, _ = run_to_the_end(recipe, tmp_path / "undisturbed", 0)
        assert trained_tasks(learner) == trained_tasks(undisturbed) == expected_tasks(recipe)
        for counted in ("issued", "trained", "filtered", "expired", "committed", "running", "failed", "taken"):
            assert getattr(statistics.ledger, counted) == getattr(before.ledger, counted), counted
        assert sorted(statistics.filtered_tasks) == sorted(before.filtered_tasks)


def trained_tasks(learner):
    return Counter(task for _, rows in learner.lineage for _, task in {(group, task) for group, task in rows})


def expected_tasks(recipe):
    """The first tasks of the stream that are not left out, as many as the run trains."""
    tasks, expected = crash_run.stream(), Counter()
    while expected.total() < recipe.steps * GROUPS_PER_STEP:
        task = tasks.next().task
        if not crash_run.all_equal(task.id) and not crash_run.broken(task.id):
            expected[task.id] += 1
    return expected
