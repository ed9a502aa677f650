"""The staleness contract in a simulated pool: bounded, unbiased, and synchronous when it is asked to be.

The buffer is the real one. Durations are Pareto with tail 1.2 (infinite variance), 40 % of the groups are filtered, engines die
and environments break, unless a test says otherwise.
"""

import math
import zlib
from functools import cache
from itertools import pairwise

import msgspec
import pytest
from scipy.stats import ks_2samp

from asyncrl.bench.simulated_pool.admission_only import AdmissionOnly
from asyncrl.bench.simulated_pool.figures import Cohort, StalenessTally
from asyncrl.bench.simulated_pool.pool import Pool, Shape, Varied
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.recipe.buffer import BufferConfig, ZeroVarianceFilterConfig
from asyncrl.core.recipe.schema import BatchConfig
from asyncrl.simulation.episodes import simulated_tasks

BOUND = 4
HARSH = Shape(
    engines=32,
    slots=8,
    shortest=10.0,
    tail=1.2,
    longest=3600.0,
    step=20.0,
    publish=2.0,
    engine_life=24 * 3600.0,
    broken=0.002,
)


class Ran:
    """A finished run and what was measured in it."""

    def __init__(self, kind, shape=HARSH, steps=300, groups_per_step=16, without_variance=0.4, **buffer):
        settings = {"max_staleness": BOUND, "pipeline_depth": 2, "max_failures": 10**9, "filters": (ZeroVarianceFilterConfig(),)}
        batch, limits = BatchConfig(groups_per_step=groups_per_step, group_size=4), BufferConfig(**settings | buffer)
        tasks = simulated_tasks(10_000, seed=1)
        varied = Varied(without_variance)
        self.tally, self.cohort = StalenessTally(), Cohort(shape, varied)
        if kind is AdmissionOnly:
            self.buffer = AdmissionOnly(batch, limits, tasks)
        else:
            self.buffer = ReplayBuffer(batch, limits, tasks, steps=steps, seed=0)
        renews = limits.on_stale == "drop"
        self.pool = Pool(self.buffer, shape, varied, (self.tally, self.cohort), batch=batch, steps=steps, renews=renews)
        self.pool.run(step=steps * 2 // 3)
        self.cohort.close()
        self.pool.run()


@cache
def harsh(on_stale):
    return Ran(ReplayBuffer, on_stale=on_stale)


@pytest.mark.parametrize("on_stale", ["mask", "wait", "drop"])
def test_the_bound_holds_for_every_token_of_every_loss(on_stale):
    ran = harsh(on_stale)
    ledger = ran.buffer.statistics().ledger
    assert ran.tally.rows == 300 * 16 * 4, "300 full batches were trained"
    assert ledger.filtered > 0.3 * ledger.issued, "filters were at work"
    assert ran.tally.max <= BOUND
    assert (ran.tally.masked == 0) == (on_stale != "mask")


def test_admission_alone_breaks_the_bound():
    ran = Ran(AdmissionOnly)
    assert ran.tally.rows == 300 * 16 * 4
    assert ran.tally.max > 4 * BOUND
    assert ran.tally.share_over(BOUND) > 0.1


@pytest.mark.parametrize("on_stale", ["mask", "wait"])
def test_lengths_trained_are_the_lengths_issued(on_stale):
    cohort = harsh(on_stale).cohort
    assert len(cohort.trained_lengths) > 8000
    assert cohort.trained == cohort.varied, "every group that no filter leaves out is trained in the end"
    assert ks_2samp(cohort.issued_lengths, cohort.trained_lengths).pvalue > 0.01
    # Heavy tails make a mean of thousands noisy: the filtered 40 % alone move it by some per cent.
    assert cohort.bias == pytest.approx(1, abs=0.15)


def test_dropping_trains_the_short_ones():
    cohort = harsh("drop").cohort
    assert cohort.bias < 0.8
    assert ks_2samp(cohort.issued_lengths, cohort.trained_lengths).pvalue < 0.01


def test_waiting_costs_the_learner_time_and_masking_does_not():
    idle = {on_stale: harsh(on_stale).pool.learner_idle for on_stale in ("mask", "wait")}
    assert idle["wait"] > 1.5 * idle["mask"]


def test_payload_is_kept_as_long_as_it_is_needed_and_no_longer():
    ran = harsh("drop")
    assert {ref.offset for ref in ran.buffer.groups.live_payload()} == ran.pool.stored.keys()


def test_a_run_is_a_pure_function_of_its_arguments():
    first, second = (Ran(ReplayBuffer, steps=60) for _ in range(2))
    assert first.buffer.snapshot() == second.buffer.snapshot()
    assert first.pool.now == second.pool.now


EVEN = msgspec.structs.replace(HARSH, tail=math.inf, engine_life=math.inf, broken=0.0)
"""All episodes are equally long and nothing fails."""


def test_staleness_sits_where_pipeline_depth_puts_it():
    means = []
    for depth in range(5):
        ran = Ran(ReplayBuffer, EVEN, steps=100, without_variance=0.0, max_staleness=8, pipeline_depth=depth)
        assert ran.tally.max <= depth
        means.append(ran.tally.mean)
    assert means[0] == 0
    assert all(deeper > shallower for shallower, deeper in pairwise(means)), means


def reward(task, sample_index, version):
    """Reward by a deterministic engine: task, sample and weights alone decide. Some tasks are left out by the filter."""
    if zlib.crc32(task.id.encode()) % 5 < 2:
        return 0.0
    return zlib.crc32(f"{task.id}/{sample_index}/{version}".encode()) / 2**32


def sequential_loop(steps, groups_per_step, group_size):
    """Train without asyncrl: one thing after the other."""
    tasks = simulated_tasks(1000, seed=1)
    for version in range(steps):
        batch = []
        while len(batch) < groups_per_step:
            task = tasks.next().task
            rewards = [reward(task, index, version) for index in range(group_size)]
            if len(set(rewards)) > 1:
                batch.append((task.id, rewards, version))
        yield batch


class Batches:
    def __init__(self):
        self.seen = []

    def issued(self, ticket):
        pass

    def took(self, batch, samples):
        groups = {}
        for row, episode, sample in zip(batch.rows, batch.episodes, samples, strict=True):
            assert sample.sampled == ((batch.version, sample.length),), "every token is of the version that is trained"
            assert row.loss_tokens == sample.length
            groups.setdefault((row.group_id, episode.task_id), []).append(row.reward)
        self.seen.append([(task_id, rewards, batch.version) for (_, task_id), rewards in groups.items()])


@pytest.mark.parametrize("on_stale", ["mask", "wait", "drop"])
def test_without_staleness_it_is_the_sequential_loop(on_stale):
    """Whatever order episodes finish in, and however many engines die meanwhile."""
    steps, batch = 150, BatchConfig(groups_per_step=8, group_size=4)
    buffer = BufferConfig(
        max_staleness=0, pipeline_depth=0, on_stale=on_stale, filters=(ZeroVarianceFilterConfig(),), max_failures=10**9
    )
    batches = Batches()
    shape = msgspec.structs.replace(HARSH, broken=0.0, engine_life=2_000.0)
    replay = ReplayBuffer(batch, buffer, simulated_tasks(1000, seed=1), steps=steps, seed=0)
    Pool(replay, shape, reward, (batches,), batch=batch, steps=steps, renews=on_stale == "drop").run()
    assert sum(replay.statistics().failures.values()) > 20, "engines died with work in hand"
    assert batches.seen == list(sequential_loop(steps, 8, 4))
