"""Probes: the same version on both sides, a bound by type, and nobody who waits for one."""

import asyncio

import numpy as np
import pytest
from test_train_pump import TAKE_S, TRAIN_S, WRITE_S, play

from asyncrl.core.errors import WeightMismatch
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.measures.gap_cause import ROUNDING
from asyncrl.core.recipe.generators import MAIN_POOL
from asyncrl.generators.completion import ScoredRow
from asyncrl.run.pool.probe_scores import EngineScores, LearnerScores
from asyncrl.run.recipe.compose import compose
from asyncrl.run.weight_probe import Probe

ROWS = ((5, 6, 7), (8, 9))
LEARNER = (np.array([-1.0, -2.0]), np.array([-3.0]))


class Sides:
    """Ranks and generators that answer what they are told to."""

    def __init__(self, engine=LEARNER, version=1):
        self.engine, self.version, self.turns = engine, version, []

    async def score(self, rows=None, turn=0):
        if rows is None:
            return LearnerScores(PolicyVersion(1), ROWS, LEARNER)
        assert rows == ROWS
        self.turns.append(turn)
        if self.engine is None:
            return None
        scored = [ScoredRow(PolicyVersion(self.version), logprobs) for logprobs in self.engine]
        return EngineScores(WorkerId("generator-0"), MAIN_POOL, scored)


def probe(sides, *overrides):
    return Probe(compose("quickstart", ["generators.dtype=float32", "learner.dtype=float32", *overrides]), sides, sides)


def compare(probing, fails=False):
    async def main():
        async def deliver():
            await asyncio.sleep(0)
            if fails:
                raise WeightMismatch("not delivered")
            return 0.0

        delivering = asyncio.create_task(deliver())
        await probing.compare(delivering)
        if fails:
            delivering.exception()

    asyncio.run(main())


def values(readings):
    return {reading.metric.name: reading.value for reading in readings}


def test_the_first_publication_is_probed_and_then_every_nth():
    probing = probe(Sides(), "weights.probe_every=3")
    assert [probing.due() for _ in range(7)] == [True, False, False, True, False, False, True]
    never = probe(Sides(), "weights.probe_every=null")
    assert not any(never.due() for _ in range(7))


def test_what_agrees_is_measured_once():
    engine = (LEARNER[0] + [1e-4, -2e-4], LEARNER[1])
    probing = probe(Sides(engine))
    compare(probing)
    measured = values(probing.readings())
    assert measured == pytest.approx({"publish/probe_mean_gap": 1e-4, "publish/probe_worst_gap": 2e-4})
    assert probing.readings() == []


@pytest.mark.parametrize("wrong", [-7.5, float("nan")])
def test_what_differs_by_more_than_rounding_ends_the_run_and_names_the_worst_token(wrong):
    probing = probe(Sides((np.array([-1.01, wrong]), LEARNER[1])))
    with pytest.raises(
        WeightMismatch, match=rf"with version 1: .* token 7 at place 2 of row 0: {wrong} by the engine, -2 by the l"
    ):
        compare(probing)


class ManyTokens(Sides):
    """Sides that score a row of many tokens; the engine at another temperature, or with noise."""

    LEARNER = np.log(np.linspace(0.05, 0.95, 40))

    def __init__(self, engine, routed=False):
        super().__init__((engine,))
        self.routed = routed

    async def score(self, rows=None, turn=0):
        if rows is None:
            return LearnerScores(PolicyVersion(1), (tuple(range(41)),), (self.LEARNER,), self.routed)
        return EngineScores(WorkerId("generator-0"), MAIN_POOL, [ScoredRow(PolicyVersion(1), self.engine[0])])


def at_temperature(logprob, temperature):
    """Of two tokens, the log-probability of one."""
    odds = (logprob - np.log(-np.expm1(logprob))) / temperature
    return -np.log1p(np.exp(-odds))


NOISE = np.random.default_rng(0).normal(0, 1, 40)


@pytest.mark.parametrize(
    ("engine", "routed", "overrides", "cause"),
    [
        (at_temperature(ManyTokens.LEARNER, 0.8), False, [], "temperature convention: the engine's log-odds are 1.25 times"),
        (ManyTokens.LEARNER + 0.01 * NOISE, False, [], "dtype: the gap is no larger than the rounding of float16"),
        (ManyTokens.LEARNER + 0.01 * NOISE, True, [], "routing of experts"),
        (ManyTokens.LEARNER - abs(NOISE), False, [], "it is of fresh tokens"),
        (
            ManyTokens.LEARNER - abs(NOISE),
            False,
            ["generators.dtype=bfloat16"],
            "dtype: learner .float32. and engines .bfloat16.",
        ),
    ],
)
def test_a_probe_that_ends_the_run_tells_a_cause(engine, routed, overrides, cause):
    with pytest.raises(WeightMismatch, match=f"Likely cause: {cause}"):
        compare(probe(ManyTokens(engine, routed), *overrides))


def test_the_bound_is_that_of_the_coarser_type():
    gap = ROUNDING["bfloat16"] / 2
    engine = tuple(own + gap for own in LEARNER)
    for coarser in ("generators.dtype=bfloat16", "learner.dtype=bfloat16"):
        compare(probe(Sides(engine), coarser))
    with pytest.raises(WeightMismatch):
        compare(probe(Sides(engine)))


@pytest.mark.parametrize("sides", [Sides(version=2), Sides(engine=None)], ids=["another version", "nobody up"])
def test_what_cannot_be_compared_is_made_up_for_with_the_next_publication(sides):
    probing = probe(sides)
    assert probing.due()
    compare(probing)
    assert probing.readings() == []
    assert probing.due()


def test_a_failed_delivery_is_told_by_who_delivers():
    sides = Sides()
    compare(probe(sides), fails=True)
    assert sides.turns == []


def test_another_engine_is_asked_each_time():
    sides = Sides()
    probing = probe(sides)
    for _ in range(3):
        compare(probing)
    assert sides.turns == [0, 1, 2]


def test_ranks_score_before_they_train_on_and_nobody_waits_for_the_engine():
    world = play(3, probe_s=30.0)
    written = TAKE_S + TRAIN_S + WRITE_S
    assert world.when("asked the ranks for scores") == pytest.approx(written)
    assert world.when("begin take 1") == pytest.approx(written)
    assert world.when("end score") > world.when("end train 2")
