from typing import Any

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.decode import decode_recipe

RECIPE = {"name": "x", "steps": 3, "model": {"path": "tiny"}, "environment": {"name": "calculator"}}

DECOUPLED = {"anchor": "proximal_recomputed", "weight": "token"}
IMITATES = {"anchor": "proximal_recomputed", "weight": "none"}
TEACHER = {"path": "folder"}


def decode(algorithm: dict[str, Any], **sections: Any) -> Any:
    return decode_recipe({**RECIPE, "algorithm": algorithm, **sections}).algorithm


@pytest.mark.parametrize(
    ("sampling", "algorithm", "place"),
    [
        ({"top_p": 0.9}, {}, "sampling.top_p"),
        ({"top_k": 20}, {}, "sampling.top_k"),
        ({"min_p": 0.1}, {"correction": DECOUPLED}, "sampling.min_p"),
        ({"top_p": 0.9}, {"correction": {"anchor": "proximal_log_linear", "weight": "token"}}, "sampling.top_p"),
    ],
)
def test_truncated_sampling_is_refused_where_ratios_would_be_of_two_distributions(sampling, algorithm, place) -> None:
    with pytest.raises(RecipeError, match="renormalised over the tokens that were kept") as caught:
        decode(algorithm, sampling=sampling)
    assert caught.value.place == place
    assert "algorithm.correction.anchor=proximal_recomputed" in str(caught.value)


def test_truncated_sampling_is_allowed_where_behaviour_probabilities_are_not_used() -> None:
    anchored = {"correction": {"anchor": "proximal_recomputed"}, "loss": {"kind": "ppo_clip"}}
    assert not decode(anchored, sampling={"top_p": 0.9, "top_k": 20}, buffer={"max_staleness": 0}).uses_behaviour
    assert decode({}, evaluation={"temperature": 0.6, "top_p": 0.9}).uses_behaviour, "an evaluation is not trained"


@pytest.mark.parametrize(
    ("algorithm", "place", "remedy"),
    [
        ({"correction": {"anchor": "proximal_recomputed"}}, "correction.weight", "set it to token"),
        ({"correction": {"weight": "token"}}, "correction.weight", "set it to none"),
        (
            {"correction": {"anchor": "behaviour", "weight": "none", "bound": {"kind": "mask"}}},
            "correction.bound",
            "weight to token and algorithm.correction.anchor to proximal_recomputed",
        ),
        (
            {"loss": {"kind": "reinforce"}, "correction": {"anchor": "proximal_log_linear", "weight": "token"}},
            "correction.anchor",
            "proximal_recomputed",
        ),
        ({"loss": {"kind": "reinforce"}}, "correction.anchor", "proximal_recomputed and algorithm.correction.weight to token"),
        ({"loss": {"kind": "sapo"}, "correction": {"trust_region_decay": 0.9}}, "correction.trust_region_decay", "ppo_clip"),
        ({"loss": {"kind": "gmpo"}, "credit": {"kind": "turn"}}, "credit.kind", "gspo"),
        ({"advantage": {"kind": "opo"}, "credit": {"kind": "turn"}}, "credit.kind", "grpo, rloo or gpg"),
        ({"advantage": {"kind": "reinforce_plus_plus"}, "credit": {"kind": "turn"}}, "credit.kind", "episode"),
        ({"advantage": {"kind": "pass_at_k", "k": 9}}, "advantage.k", "at most 7"),
        ({"advantage": {"kind": "pass_at_k", "k": 8}}, "advantage.k", "batch.group_size to at least 9"),
        (
            {"loss": {"kind": "custom", "name": "a:b"}, "correction": {"trust_region_decay": 0.9}},
            "correction.trust_region_decay",
            "by tokens.staleness",
        ),
        ({"loss": {"kind": "clip_cov", "low": 5}}, "loss.low", "below 5"),
        ({"loss": {"kind": "clip_cov", "low": 5, "high": 1.23456789}}, "loss.low", "below 1.23456789"),
        ({"loss": {"kind": "ppo_clip", "dual_clip": 1.28}}, "loss.dual_clip", "above 1.28, or to 0"),
        ({"loss": {"kind": "ppo_clip", "clip_high": 4, "dual_clip": 3}}, "loss.dual_clip", "above 5"),
        (
            {"correction": {**DECOUPLED, "bound": {"kind": "mask", "lower": 1, "upper": 1}}},
            "correction.bound.lower",
            "lower",
        ),
        ({"correction": {"reject": [{"kind": "ratio", "lower": 1, "upper": 1}]}}, "correction.reject[0].lower", "lower"),
        ({"advantage": {"kind": "gae"}, "loss": {"kind": "gmpo"}}, "advantage.kind", "ppo_clip"),
        ({"advantage": {"kind": "gae"}, "credit": {"kind": "turn", "discount": 0.9}}, "credit.discount", "advantage.discount"),
        ({"advantage": {"kind": "gae", "critic_warmup_steps": 3}}, "advantage.critic_warmup_steps", "below 3"),
        ({"minibatches": 17}, "minibatches", "at most 16"),
        ({"overlong": {"limit": 100, "ramp": 101}}, "overlong.ramp", "at most 100"),
        ({"overlong": {"limit": 2_000_000, "ramp": 1}}, "overlong.limit", "at most"),
        ({"overlong": {"limit": 100, "ramp": 10}, "advantage": {"kind": "pass_at_k"}}, "overlong", "grpo"),
        ({"advantage": {"kind": "gdpo", "rewards": {"a": 1, "b": 0}}}, "advantage.rewards.b", "finite number"),
        ({"advantage": {"kind": "gdpo", "rewards": {"a": float("inf")}}}, "advantage.rewards.a", "finite number"),
        ({"advantage": {"kind": "gdpo", "rewards": {"a": 1e200}}}, "advantage.rewards.a", "to 1e+06"),
        ({"advantage": {"kind": "gdpo", "rewards": {"a": -1e-200}}}, "advantage.rewards.a", "from 1e-06"),
        ({"advantage": {"kind": "gdpo", "rewards": {"": 1}}}, "advantage.rewards", "name a metric"),
        ({"advantage": {"kind": "gdpo", "rewards": {"a": 1}}, "credit": {"kind": "turn"}}, "credit.kind", "episode"),
        ({"advantage": {"kind": "gdpo", "rewards": {"a": 1}}, "kl": {"kind": "in_reward"}}, "kl.kind", "in_loss"),
        (
            {"advantage": {"kind": "gdpo", "rewards": {"a": 1}}, "overlong": {"limit": 100, "ramp": 10}},
            "overlong",
            "report a metric",
        ),
        ({"advantage": {"kind": "remax"}, "credit": {"kind": "turn"}}, "credit.kind", "episode"),
        ({"advantage": {"kind": "remax"}, "kl": {"kind": "in_reward"}}, "kl.kind", "in_loss"),
        ({"advantage": {"kind": "max_rl"}, "credit": {"kind": "turn"}}, "credit.kind", "episode"),
        ({"advantage": {"kind": "best_of_group"}, "credit": {"kind": "turn"}}, "credit.kind", "episode"),
        ({"advantage": {"kind": "max_rl"}, "kl": {"kind": "in_reward"}}, "kl.kind", "in_loss"),
        ({"advantage": {"kind": "pass_at_k"}, "kl": {"kind": "in_reward"}}, "kl.kind", "in_loss"),
        ({"overlong": {"limit": 100, "ramp": 10}, "advantage": {"kind": "max_rl"}}, "overlong", "grpo"),
        (
            {"correction": {"anchor": "proximal_log_linear", "weight": "token", "bound": {"kind": "normalize"}}},
            "correction.bound.kind",
            "truncate",
        ),
        ({"kl": {"kind": "in_loss", "estimator": "k1", "straight_through": False}}, "kl.estimator", "k2 or k3"),
        ({"teacher": {}}, "teacher", "as path, or the server that has it as url"),
        ({"teacher": {**TEACHER, "url": "http://host:8000"}}, "teacher", "as path, or the server"),
        ({"teacher": {"url": "host:8000"}}, "teacher.url", "http://host:port"),
        ({"teacher": {**TEACHER, "token_variable": "KEY"}}, "teacher.token_variable", "leave it out"),
        ({"teacher": {"url": "http://host:8000", "engines": 2}}, "teacher.engines", "leave it out"),
        ({"teacher": {"url": "http://host:8000", "timeout_s": 301}}, "teacher.timeout_s", "at most 300"),
        ({"teacher": {"url": "http://host:8000", "timeout_s": 1234.56789}}, "teacher.timeout_s", "at least 1234.56789"),
        ({"teacher": TEACHER, "loss": {"kind": "gmpo"}, "correction": DECOUPLED}, "loss.kind", "gspo or dppo"),
        ({"teacher": TEACHER, "loss": {"kind": "cross_entropy"}, "correction": IMITATES}, "loss.kind", "another loss"),
        ({"teacher": {**TEACHER, "placement": {"resources": {"GPU": 1}}}}, "teacher.placement.resources.GPU", "tensor_parallel"),
        ({"advantage": {"kind": "none"}}, "advantage.kind", "name a teacher"),
        ({"advantage": {"kind": "none"}, "teacher": TEACHER, "kl": {"kind": "in_reward"}}, "kl.kind", "in_loss"),
        ({"advantage": {"kind": "none"}, "teacher": TEACHER, "loss": {"kind": "kl_cov"}}, "loss.kind", "another advantage"),
        ({"advantage": {"kind": "none"}, "teacher": TEACHER, "loss": {"kind": "clip_cov"}}, "loss.kind", "another advantage"),
        ({"advantage": {"kind": "none"}, "teacher": TEACHER, "overlong": {"limit": 100, "ramp": 10}}, "overlong", "leave it out"),
        ({"kl": {"kind": "in_loss", "estimator": "abs", "straight_through": False}}, "kl.estimator", "straight_through to true"),
    ],
)
def test_a_combination_without_sense_is_refused_with_the_remedy(algorithm: dict[str, Any], place: str, remedy: str):
    with pytest.raises(RecipeError) as caught:
        decode(algorithm)
    assert caught.value.place == f"algorithm.{place}"
    assert remedy in caught.value.remedy
    assert not getattr(caught.value, "__notes__", [])


@pytest.mark.parametrize(
    "algorithm",
    [
        {"correction": {"anchor": "behaviour", "weight": "none"}},
        {"correction": {"anchor": "proximal_log_linear", "weight": "segment", "trust_region_decay": 0.9}},
        {"loss": {"kind": "reinforce"}, "correction": DECOUPLED, "aggregation": {"kind": "constant", "tokens": 256}},
        {"loss": {"kind": "gspo"}, "credit": {"kind": "turn", "discount": 0.9}, "advantage": {"kind": "rloo"}},
        {"advantage": {"kind": "pass_at_k", "k": 7}, "loss": {"kind": "ppo_clip", "dual_clip": 3}},
        {"minibatches": 16, "epochs": 4},
        {"teacher": TEACHER},
        {"teacher": {"url": "http://host:8000"}, "advantage": {"kind": "none"}},
        {"advantage": {"kind": "none"}, "loss": {"kind": "cross_entropy"}, "correction": IMITATES},
        {"advantage": {"kind": "max_rl", "success": 0.5}, "kl": {"kind": "in_loss"}},
        {"advantage": {"kind": "best_of_group"}, "overlong": {"limit": 100, "ramp": 10}},
        {"correction": {**DECOUPLED, "weight": "sequence", "bound": {"kind": "normalize", "upper": 3}}},
        {"correction": {"reject": [{"kind": "second_moment"}, {"kind": "off_policy_sequence", "upper": 0.2}]}},
        {"correction": {"anchor": "behaviour", "weight": "none", "reject": [{"kind": "second_moment", "upper": 0.04}]}},
        {"advantage": {"kind": "gae", "critic_warmup_steps": 2}, "credit": {"kind": "turn"}},
        {"advantage": {"kind": "gdpo", "rewards": {"reward": 1, "tool_calls": -0.1}}, "kl": {"kind": "in_loss"}},
        {"advantage": {"kind": "gdpo", "rewards": {"reward": 1e6, "tool_calls": -1e-6}}},
        {"kl": {"kind": "in_loss", "estimator": "k1"}},
        {"kl": {"kind": "in_loss", "estimator": "k3", "straight_through": False}},
        {"kl": {"kind": "in_reward", "estimator": "k1", "control": {"kind": "adaptive", "target": 0.1}}},
        {
            "correction": {
                **DECOUPLED,
                "weight": "sequence",
                "bound": {"kind": "mask"},
                "reject": [{"kind": "ratio"}, {"kind": "divergence", "estimator": "k1", "level": "token"}],
            }
        },
    ],
)
def test_sensible_combinations_are_allowed(algorithm: dict[str, Any]):
    decode(algorithm)


def test_a_group_may_not_lack_its_greedy_episode():
    remax = {"advantage": {"kind": "remax"}}
    with pytest.raises(RecipeError) as caught:
        decode(remax, batch={"group_size": 4, "min_group": 3})
    assert caught.value.place == "batch.min_group"
    decode(remax, batch={"group_size": 4, "min_group": 4})
    decode(remax, batch={"group_size": 2})


def test_no_correction_is_right_without_staleness():
    uncorrected = {"correction": {"anchor": "proximal_recomputed", "weight": "none"}}
    assert decode(uncorrected, buffer={"max_staleness": 0, "pipeline_depth": 0}).correction.weight == "none"


def test_probabilities_of_a_teacher_are_of_temperature_1() -> None:
    with pytest.raises(RecipeError, match="the temperature of a teacher's probabilities") as caught:
        decode({"teacher": TEACHER}, sampling={"temperature": 0.8})
    assert caught.value.place == "sampling.temperature"
