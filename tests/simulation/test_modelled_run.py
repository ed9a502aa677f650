"""A modelled run does what a run does, and large ones agree with smaller ones of the same shape."""

from types import SimpleNamespace

import pytest

from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.recipe.compose import compose
from asyncrl.simulation import part
from asyncrl.simulation.engine import ModelEngine
from asyncrl.simulation.episodes import Held, ModelEpisode, ModelEpisodes, ModelTurn, uniform
from asyncrl.simulation.events import Events
from asyncrl.simulation.modelled_run import ModelledRun
from asyncrl.simulation.outcome import EnginesDieTooSoon, Outcome
from asyncrl.simulation.processor import Processor
from asyncrl.simulation.rates import EngineRates, FailureRates, LearnerRates, PublicationRates, Rate, Rates
from asyncrl.simulation.worker import ModelWorker

NO_FAILURES = FailureRates()
EPISODES = ModelEpisodes(
    [
        [ModelEpisode((ModelTurn(40, 8 + int(200 * uniform(group, sample) ** 4), 0.3), ModelTurn(6, 12))) for sample in range(8)]
        for group in range(64)
    ]
)


def recipe(*keys: str) -> Recipe:
    base = (
        "batch.groups_per_step=8",
        "batch.group_size=4",
        "evaluation.every=1000",
        "checkpoint.every=1000",
        "generators.max_running=64",
    )
    return compose("quickstart", [*base, "buffer.pipeline_depth=1", *keys])


def rate(value: float) -> Rate:
    return Rate(value, "given")


def run(
    made: Recipe,
    *,
    steps: int = 12,
    seed: int = 0,
    failures: FailureRates = NO_FAILURES,
    held: Held | None = None,
    token: float = 2e-5,
    episodes: ModelEpisodes = EPISODES,
) -> Outcome:
    rates = Rates(
        engine=EngineRates(step=rate(0.01), request=rate(2e-4), prompt_token=rate(1e-5), start=rate(3.0)),
        learner=LearnerRates(step=rate(0.1), token=rate(token)),
        publication=PublicationRates(write=rate(0.05), move=rate(0.1), pause=rate(0.02), checkpoint=rate(1.0)),
        failures=failures,
    )
    return ModelledRun(made, rates, episodes, seed=seed, steps=steps, held=held or Held()).run()


def test_a_large_run_agrees_with_a_smaller_one_of_the_same_shape(monkeypatch: pytest.MonkeyPatch):
    large = recipe("generators.count=32", "batch.groups_per_step=128", "generators.max_running=32")
    monkeypatch.setattr(part, "LEAST_ENGINES", 64)
    whole = run(large)
    monkeypatch.setattr(part, "LEAST_ENGINES", 8)
    monkeypatch.setattr(part, "LEAST_EPISODES", 64)
    small = run(large)
    assert (whole.scale, small.scale) == (1, 4)
    assert small.trajectories_per_s == pytest.approx(whole.trajectories_per_s, rel=0.08)
    assert small.staleness_mean == pytest.approx(whole.staleness_mean, abs=0.1)


def test_a_part_of_synchronous_training_waits_for_the_longest_episode_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch):
    rare = [
        [ModelEpisode((ModelTurn(40, 20 if uniform(group, sample) < 0.99 else 1000),)) for sample in range(4)]
        for group in range(64)
    ]
    large = recipe("generators.count=64", "batch.groups_per_step=256", "buffer.max_staleness=0", "buffer.pipeline_depth=0")
    monkeypatch.setattr(part, "LEAST_ENGINES", 128)
    whole = run(large, steps=16, episodes=ModelEpisodes(rare))
    monkeypatch.setattr(part, "LEAST_ENGINES", 8)
    monkeypatch.setattr(part, "LEAST_EPISODES", 64)
    small = run(large, steps=16, episodes=ModelEpisodes(rare))
    assert (whole.scale, small.scale) == (1, 8)
    assert small.trajectories_per_s == pytest.approx(whole.trajectories_per_s, rel=0.05)


@pytest.mark.parametrize("ranks", [6, 64, 128])
def test_a_part_of_a_large_run_loads_each_rank_as_the_whole_does(ranks: int, monkeypatch: pytest.MonkeyPatch):
    large = recipe(
        f"learner.data_parallel={ranks}", "generators.count=32", "batch.groups_per_step=128", "generators.max_running=32"
    )
    monkeypatch.setattr(part, "LEAST_ENGINES", 64)
    whole = run(large, token=ranks * 1e-4)
    monkeypatch.setattr(part, "LEAST_ENGINES", 8)
    monkeypatch.setattr(part, "LEAST_EPISODES", 64)
    small = run(large, token=ranks * 1e-4)
    assert whole.time.idle.learner < 0.2, "the learner is what holds it up"
    assert (whole.scale, small.scale) == (1, 4)
    assert small.rank_tokens == pytest.approx(whole.rank_tokens, rel=0.15)
    assert small.trajectories_per_s == pytest.approx(whole.trajectories_per_s, rel=0.1)


def test_synchronous_training_has_no_staleness_and_waits_in_turn():
    found = run(recipe("buffer.max_staleness=0", "buffer.pipeline_depth=0"))
    assert set(found.staleness) == {0}
    assert found.time.idle.learner > 0.5
    assert found.time.trajectories_per_s < run(recipe()).time.trajectories_per_s


@pytest.mark.parametrize("on_stale", ["mask", "wait", "drop"])
def test_nothing_over_the_bound_is_trained(on_stale: str):
    found = run(recipe("buffer.max_staleness=1", f"buffer.on_stale={on_stale}"), steps=20)
    assert found.staleness_max <= 1
    assert (found.expired > 0) <= (on_stale == "drop")


def test_the_parts_of_a_step_add_up():
    time = run(recipe(), steps=16).time
    learner = time.learner
    spent = learner.waiting + learner.training + learner.writing + learner.delivering + learner.checkpointing
    assert spent == pytest.approx(time.seconds, rel=1e-6)
    assert time.generators.wall == pytest.approx(time.slots, rel=1e-6)


def test_checkpoints_and_evaluations_take_their_time():
    plain = run(recipe())
    assert run(recipe("checkpoint.every=3"), steps=12).time.learner.checkpointing == pytest.approx(4 * 1.0)
    assert run(recipe("evaluation.every=2"), held=Held(EPISODES, 200)).step_mean > 1.1 * plain.step_mean


def test_filtered_and_broken_episodes_and_dead_engines_cost_throughput():
    filters = recipe("buffer.filters=[{kind: zero_variance}]")
    plain = run(filters).trajectories_per_s
    for failures in (
        FailureRates(filtered=rate(0.5)),
        FailureRates(broken=rate(0.2)),
        FailureRates(engine_life=rate(8.0), lease=rate(1.0)),
    ):
        assert run(filters, failures=failures).trajectories_per_s < 0.97 * plain


def test_engines_that_die_before_any_episode_is_over_are_told():
    with pytest.raises(EnginesDieTooSoon, match=r"step 1 .*engines live 0\.001 s on average \(failures\.engine_life\)"):
        run(recipe(), failures=FailureRates(engine_life=rate(0.001), lease=rate(1.0)))


def test_an_evaluation_is_over_where_there_is_no_engine_or_it_dies():
    events, over = Events(), []
    engine = ModelEngine(
        events, EngineRates(step=rate(0.01), request=rate(1e-4), prompt_token=rate(0)), Processor(0.0, 0.0, events.clock), 4, 0
    )
    worker = ModelWorker(events, engine, SimpleNamespace(group_size=4), "only", 4, 0.0)  # type: ignore[arg-type]
    episodes = [ModelEpisode((ModelTurn(5, 5, 1.0), ModelTurn(5, 5)))]
    worker.evaluate(episodes, lambda: over.append("with the engine"))
    events.next()
    worker.die()
    assert over == ["with the engine"]
    worker.evaluate(episodes, lambda: over.append("without one"))
    while events.next():  # nothing of the first goes on
        pass
    assert over == ["with the engine", "without one"]
