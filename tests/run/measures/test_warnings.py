"""What a person would have seen in the curves is said, with cause and remedy, and only then."""

import re

import msgspec
import pytest

from asyncrl.core.measures.gap_cause import GapEvidence
from asyncrl.core.measures.latencies import Latencies
from asyncrl.core.trajectory import StopReason
from asyncrl.generators.finished_episodes import EpisodeCounts, FinishedEpisodes, ToolCounts
from asyncrl.run.measures.warnings import WINDOW, StepSigns, WarningSigns
from asyncrl.run.recipe.compose import compose

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
    assert "equal in the last 4 training steps (mean 0.25), so nothing is learned" in sentence
    assert "batch.group_size" in sentence
    ended = [HEALTHY, *[step(zero_variance=1.0)] * WINDOW]
    assert "no_variance" in said(*ended), "it is the last steps that count"


FLOAT32 = compose("quickstart", ["learner.dtype=float32", "generators.dtype=float32"])
MIXED = compose("quickstart", ["learner.dtype=float32", "generators.dtype=bfloat16"])


@pytest.mark.parametrize(
    ("recipe", "first", "later", "cause"),
    [
        (FLOAT32, 1e-4, {"fresh": 0.3, "slope": 1.43, "explained": 0.96}, "temperature convention: .* 0.7 times the learner's"),
        (FLOAT32, 1e-4, {"fresh": 0.3, "turn_begins": 2.0}, "template: the first tokens of turns differ by 2 nats"),
        (
            FLOAT32,
            1e-4,
            {"fresh": 0.01, "older": 0.02},
            "stale weights: .* older weights than those of the version that they rep",
        ),
        (FLOAT32, 1e-4, {"fresh": 0.01, "one_version": 1e-4}, "stale weights: .* keys and values"),
        (FLOAT32, 1e-4, {"fresh": 0.3}, "Likely cause: it is of fresh tokens"),
        (FLOAT32, 1e-4, {"fresh": 1e-3}, None),  # rounding explains it
        (FLOAT32, 5e-3, {"fresh": 1e-2}, None),  # it was there from the beginning: the probe's affair
        (MIXED, 0.01, {"fresh": 0.2}, "dtype: learner .float32. and engines .bfloat16. compute in unlike types"),
        (MIXED, 0.01, {"fresh": 0.09}, None),
        (FLOAT32, 1e-4, {}, None),
    ],
)
def test_a_gap_between_learner_and_engines_that_grows_is_told_with_a_cause(recipe, first, later, cause):
    begun, grown = step(gap=GapEvidence(fresh=first)), step(gap=GapEvidence(**later))
    sentence = said(*[begun] * WINDOW, *[grown] * WINDOW, recipe=recipe).get("gap")
    assert (sentence is None) if cause is None else re.search(cause, sentence), sentence


@pytest.mark.parametrize(("replay", "named"), [("false", True), ("true", False)])
def test_a_gap_that_experts_may_make_is_told_so_unless_they_are_replayed(replay, named):
    recipe = compose("quickstart", ["learner.dtype=float32", "generators.dtype=float32", f"learner.experts.replay={replay}"])
    begun, grown = (step(gap=GapEvidence(fresh=fresh), routed=True) for fresh in (1e-4, 0.3))
    sentence = said(*[begun] * WINDOW, *[grown] * WINDOW, recipe=recipe)["gap"]
    assert ("routing of experts" in sentence) is named


@pytest.mark.parametrize("advantage", ["{kind: gae}", "{kind: reinforce_plus_plus}"])
def test_where_groups_are_not_compared_equal_rewards_are_nothing_to_tell(advantage):
    recipe = compose("quickstart", [f"algorithm.advantage={advantage}"])
    assert said(*[step(zero_variance=1.0)] * WINDOW, recipe=recipe) == {}


def test_a_run_of_too_few_steps_to_learn_is_told_what_is_wrong_with_its_calls_alone():
    recipe = compose("quickstart", ["steps=2", "learner.warmup_steps=1"])
    calls = finished(environment_done=20, calls=40, malformed=40)
    assert list(said(*[step(zero_variance=1.0, grad_norm=0.0, finished=calls)] * 2, recipe=recipe)) == ["malformed_calls"]


def test_of_a_model_that_cannot_play_only_one_thing_is_news():
    calls = finished(turn_length=20, calls=40, malformed=40)
    signs = WarningSigns(RECIPE, able=False)
    told = [each for _ in range(WINDOW) for each in signs.step(1, step(zero_variance=1.0, grad_norm=0.0, finished=calls))]
    assert [each.key for each in told] == ["no_variance"]
    assert "name a better one in model.path" in told[0].sentence


def test_a_gradient_of_zero_is_told_unless_equal_rewards_say_it():
    assert said(*[step(grad_norm=0.0)] * (WINDOW - 1), HEALTHY) == {}
    assert "correction/masked_fraction" in said(*[step(grad_norm=0.0)] * WINDOW)["no_gradient"]
    assert list(said(*[step(grad_norm=0.0, zero_variance=1.0)] * WINDOW)) == ["no_variance"]
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


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ([], True),
        (["algorithm.overlong={limit: 200, ramp: 50}"], False),
        (["algorithm.advantage={kind: max_rl}"], False),
        (["algorithm.advantage={kind: gdpo, rewards: {reward: 1}}"], False),
    ],
)
def test_a_penalty_for_length_is_only_named_where_the_recipe_can_have_one(overrides: list[str], named: bool):
    found = said(*[step(finished=finished(turn_length=51))] * WINDOW, recipe=compose("quickstart", overrides))
    assert ("(algorithm.overlong)" in found["cut_turn_length"]) is named


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
