"""The time of an engine's steps is divided between prompts and sampled tokens; vLLM's parts are given as it makes them."""

from types import SimpleNamespace

import pytest

from asyncrl.core.measures.step_moments import StepMoments
from asyncrl.generators.vllm.engine_steps import EngineSteps, prompt_tokens


def scheduled(new: dict[str, int], going_on: dict[str, tuple[int, int]], resumed: frozenset[str] = frozenset()):
    """What vLLM's scheduler returns: tokens of new requests, and tokens and sampled tokens of those that go on."""
    tokens = new | {name: count for name, (count, _) in going_on.items()}
    cached = SimpleNamespace(
        req_ids=list(going_on),
        num_output_tokens=[sampled for _, sampled in going_on.values()],
        num_computed_tokens=[10 * sampled for _, sampled in going_on.values()],
        resumed_req_ids=resumed,
    )
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
        scheduled_cached_reqs=cached,
    )


def test_tokens_of_prompts_are_those_of_requests_that_sampled_nothing_yet_or_lost_their_cache():
    going_on = {"decodes": (1, 7), "in pieces": (30, 0), "again": (50, 9)}
    assert prompt_tokens(scheduled({"new": 20}, going_on, frozenset({"again"}))) == 20 + 30 + 50
    assert prompt_tokens(scheduled({}, {"a": (1, 1), "b": (1, 30)})) == 0


def test_before_any_step_only_sampled_the_time_is_divided_by_tokens(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr("asyncrl.generators.vllm.engine_steps.time.monotonic", lambda: now[0])
    plan = [scheduled({"a": 30}, {"b": (1, 3), "c": (9, 4)}), scheduled({}, {"a": (1, 1)}), scheduled({}, {})]

    def step() -> tuple[dict[int, str], bool]:
        core.scheduler.schedule(throttled=False)
        now[0] += 4.0
        return {0: "outputs"}, True

    core = SimpleNamespace(scheduler=SimpleNamespace(schedule=lambda throttled: plan.pop(0)), step_fn=step)
    steps = EngineSteps.measuring(core)
    assert EngineSteps.measuring(core) is steps
    assert core.step_fn() == ({0: "outputs"}, True)
    assert (steps.prefill_seconds, steps.decode_seconds) == (3.0, 1.0)
    core.step_fn()
    core.step_fn()  # it computed no token
    assert (steps.prefill_seconds, steps.decode_seconds) == (3.0, 5.0)
    moments = StepMoments.of(steps.moments)
    assert [moments.total(name) for name in ("steps", "prompts", "sampled", "context", "seconds")] == [2, 30, 11, 80, 8]
    assert (moments.product("sampled", "prompts"), moments.product("context", "context")) == (300, 70**2 + 10**2)


def test_what_prompts_add_to_a_step_is_theirs(monkeypatch: pytest.MonkeyPatch):
    """As on a GPU, where a step that samples takes nearly the same time for any number of requests."""
    now = [0.0]
    monkeypatch.setattr("asyncrl.generators.vllm.engine_steps.time.monotonic", lambda: now[0])
    decoding = dict.fromkeys("bcdefghi", (1, 3))
    plan = [(scheduled({}, decoding), 2.0), (scheduled({"a": 8}, decoding), 2.5), (scheduled({"a": 8}, {"b": (1, 3)}), 1.0)]

    def step() -> tuple[dict[int, str], bool]:
        made, seconds = plan.pop(0)
        monkeypatch.setattr(core.scheduler, "made", made)
        core.scheduler.schedule()
        now[0] += seconds
        return {}, True

    core = SimpleNamespace(scheduler=SimpleNamespace(schedule=lambda: core.scheduler.made, made=None), step_fn=step)
    steps = EngineSteps.measuring(core)
    core.step_fn()
    assert (steps.prefill_seconds, steps.decode_seconds) == (0.0, 2.0)
    core.step_fn()
    assert (steps.prefill_seconds, steps.decode_seconds) == (0.5, 4.0)
    core.step_fn()  # faster than steps that sampled have been: nothing is left for its prompt
    assert (steps.prefill_seconds, steps.decode_seconds) == (0.5, 5.0)


def test_where_steps_are_scheduled_ahead_the_time_between_results_is_of_the_step_that_ended(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr("asyncrl.generators.vllm.engine_steps.time.monotonic", lambda: now[0])
    plan = [scheduled({"a": 40}, {}), scheduled({}, {"a": (1, 1)}), scheduled({}, {"a": (1, 2)})]
    takes, queue = [5.0, 1.0, 2.0], []

    def step() -> tuple[dict[int, str] | None, bool]:
        if plan:
            queue.append(core.scheduler.schedule())
            if len(queue) < 2:
                return None, True
        queue.pop(0)
        now[0] += takes.pop(0)
        return {}, True

    core = SimpleNamespace(scheduler=SimpleNamespace(schedule=lambda: plan.pop(0)), step_fn=step)
    steps = EngineSteps.measuring(core)
    for _ in range(4):
        core.step_fn()
    assert (steps.prefill_seconds, steps.decode_seconds) == (5.0, 3.0)
    now[0] += 100.0  # idle
    plan.append(scheduled({}, {"a": (1, 3)}))
    takes.append(1.0)
    core.step_fn()
    core.step_fn()
    assert (steps.prefill_seconds, steps.decode_seconds) == (5.0, 4.0)
