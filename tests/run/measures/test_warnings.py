"""What a person would have seen in the curves is said, with cause and remedy, and only then."""

import msgspec
import pytest

from asyncrl.core.measures.latencies import Latencies
from asyncrl.core.trajectory import StopReason
from asyncrl.run.measures.warnings import WINDOW, StepSigns, WarningSigns
from asyncrl.run.recipe.compose import compose
from generators.finished_episodes import EpisodeCounts, FinishedEpisodes, ToolCounts

RECIPE = compose("quickstart")
HEALTHY = StepSigns(reward=0.5, zero_variance=0.3, grad_norm=0.7, sample_size=0.9, filtered=8, complete=24)


def said(*steps: StepSigns, recipe=RECIPE) -> dict[str, str]:
    """All that is said of a run of these training steps, by key."""
    signs = WarningSigns(recipe)
    return {each.key: each.sentence for number, one in enumerate(steps, 1) for each in signs.step(number, one)}


def step(**changed) -> StepSigns:
    return msgspec.structs.replace(HEALTHY, **changed)


def finished(empty=0, tools=None, calls=0, malformed=0, **stopped: int) -> FinishedEpisodes:
    reasons = {StopReason(reason): number for reason, number in stopped.items()}
    counts = EpisodeCounts(episodes=sum(stopped.values()), empty_answers=empty, stopped=reasons)
    return FinishedEpisodes(sources={"a": counts}, tools=tools or {}, calls=calls, malformed_calls=malformed)


def test_a_healthy_run_is_told_nothing():
    calls = {"look": ToolCounts(calls=100, errors=20, timeouts=5)}
    good = finished(environment_done=60, turn_length=30, max_turns=10, empty=10, tools=calls, calls=100, malformed=40)
    assert said(*[step(finished=good)] * 10) == {}
    signs = WarningSigns(RECIPE)
    assert not [*signs.evaluation(0.5, [0.0, 1.0] * 50), *signs.evaluation(0.52, [0.0, 1.0] * 50)]


def test_equal_rewards_in_every_group_for_a_whole_window():
    assert "no_variance" not in said(*[step(zero_variance=1.0)] * (WINDOW - 1))
    assert "no_variance" not in said(*[step(zero_variance=1.0), step(zero_variance=0.99)] * WINDOW)
    sentence = said(*[step(zero_variance=1.0, reward=0.25)] * WINDOW)["no_variance"]
    assert "equal in the last 4 training steps (mean reward 0.25)" in sentence
    assert "batch.group_size" in sentence
    ended = [HEALTHY, *[step(zero_variance=1.0)] * WINDOW]
    assert "no_variance" in said(*ended), "it is the last steps that count"


FLOAT32 = compose("quickstart", ["learner.dtype=float32", "generators.dtype=float32"])
MIXED = compose("quickstart", ["learner.dtype=float32", "generators.dtype=bfloat16"])


@pytest.mark.parametrize(
    ("recipe", "first", "later", "cause"),
    [
        (FLOAT32, 1e-4, 1e-2, "both compute in float32"),
        (FLOAT32, 1e-4, 1e-3, None),  # rounding explains it
        (FLOAT32, 5e-3, 1e-2, None),  # it was there from the beginning: the probe's affair
        (MIXED, 0.01, 0.2, "unlike types"),
        (MIXED, 0.01, 0.09, None),
        (FLOAT32, 1e-4, None, None),
    ],
)
def test_a_gap_between_learner_and_engines_that_grows_is_told_with_a_cause(recipe, first, later, cause):
    sentence = said(*[step(gap=first)] * WINDOW, *[step(gap=later)] * WINDOW, recipe=recipe).get("gap")
    assert (sentence is None) if cause is None else (cause in sentence)


@pytest.mark.parametrize("advantage", ["{kind: gae}", "{kind: reinforce_plus_plus}"])
def test_where_groups_are_not_compared_equal_rewards_are_nothing_to_tell(advantage):
    recipe = compose("quickstart", [f"algorithm.advantage={advantage}"])
    assert said(*[step(zero_variance=1.0)] * WINDOW, recipe=recipe) == {}


def test_a_run_shorter_than_the_window_is_looked_at_as_a_whole():
    recipe = compose("quickstart", ["steps=2", "learner.warmup_steps=1"])
    assert "the last 2 training steps" in said(*[step(zero_variance=1.0)] * 2, recipe=recipe)["no_variance"]


def test_a_gradient_of_zero_says_what_it_comes_from():
    assert said(*[step(grad_norm=0.0)] * (WINDOW - 1), HEALTHY) == {}
    assert "correction/masked_fraction" in said(*[step(grad_norm=0.0)] * WINDOW)["no_gradient"]
    both = said(*[step(grad_norm=0.0, zero_variance=1.0)] * WINDOW)
    assert "because the rewards of every group are equal" in both["no_gradient"]
    assert said(*[step(grad_norm=None)] * WINDOW) == {}


def test_a_critic_that_is_warmed_up_alone_needs_no_gradient_of_the_policy():
    recipe = compose("quickstart", ["algorithm.advantage={kind: gae, critic_warmup_steps: 6}"])
    assert said(*[step(grad_norm=0.0)] * 6, recipe=recipe) == {}
    assert "no_gradient" in said(*[step(grad_norm=0.0)] * (6 + WINDOW), recipe=recipe)


@pytest.mark.parametrize(
    ("reason", "limit"),
    [
        ("turn_length", "sampling.max_turn_tokens = 48"),
        ("context_length", "model.max_context = 256"),
        ("max_turns", "environment.max_turns = 6"),
        ("episode_timeout", "environment.episode_timeout_s = "),
    ],
)
def test_the_limit_that_cuts_most_episodes_is_named(reason, limit):
    cut = finished(environment_done=45, tool_error=3, **{reason: 51})
    sentence = said(*[step(finished=cut)] * WINDOW)[f"cut_{reason}"]
    assert limit in sentence
    assert f"raise {limit.partition(' ')[0]}" in sentence


def test_of_several_limits_the_one_that_cuts_most_is_named():
    found = said(*[step(finished=finished(environment_done=40, max_turns=20, context_length=40))] * WINDOW)
    assert list(found) == ["cut_context_length"]
    assert "60 % of the episodes" in found["cut_context_length"]
    assert "(40 %) by model.max_context" in found["cut_context_length"]
    assert said(*[step(finished=finished(turn_length=3))] * WINDOW) == {}, "12 episodes say nothing"


def test_answers_without_text():
    sentence = said(*[step(finished=finished(environment_done=10, empty=6))] * WINDOW)["empty_answers"]
    assert "60 % of the episodes" in sentence


def test_a_tool_that_times_out_or_fails():
    tools = {
        "slow": ToolCounts(calls=100, timeouts=25, latencies=Latencies()),
        "broken": ToolCounts(calls=12, errors=4),
        "refusing": ToolCounts(calls=12, errors=3),
        "rare": ToolCounts(calls=4, errors=4),
    }
    found = said(*[step(finished=finished(environment_done=10, tools=tools, calls=114))] * WINDOW)
    assert sorted(found) == ["tool_errors_broken", "tool_timeouts_slow"]
    assert "25 % of its 400 calls" in found["tool_timeouts_slow"]
    assert "environment.tool_timeout_s = 10" in found["tool_timeouts_slow"]
    assert "33 % of its 48 calls" in found["tool_errors_broken"]
    assert "tracebacks of all but those that the tool reported by ToolError" in found["tool_errors_broken"]


def test_calls_that_reach_no_tool():
    found = said(*[step(finished=finished(environment_done=10, calls=100, malformed=60))] * WINDOW)
    assert "model.tool_parser" in found["malformed_calls"]


def test_an_effective_sample_size_that_collapses():
    found = said(*[step(sample_size=0.2)] * WINDOW)
    assert "20 % of the sample" in found["sample_size"]
    assert "buffer.max_staleness = 4" in found["sample_size"]
    assert said(*[step(sample_size=None)] * WINDOW) == {}


def test_groups_that_filters_mostly_leave_out():
    found = said(*[step(filtered=80, complete=100)] * WINDOW)
    assert "filters left out 320 of 400 groups" in found["filtered"]
    assert said(*[step(filtered=0, complete=0)] * WINDOW) == {}


def test_an_evaluation_clearly_below_the_first_one():
    (warning,) = WarningSigns(RECIPE).evaluation(0.8, [0.0, 1.0] * 50)
    assert warning.key == "evaluation"
    assert "0.500 and was 0.800" in warning.sentence
    assert [*WarningSigns(RECIPE).evaluation(0.1, [0.0] * 4)], "all answers are wrong: that is no chance"
    assert not [*WarningSigns(RECIPE).evaluation(0.6, [0.0, 1.0] * 20)], "0.1 less of 40 tasks is chance"
