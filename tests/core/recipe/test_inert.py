"""What cannot act is named, with what would make it act; what can is not."""

import re
from typing import Any, get_args

import pytest

from asyncrl.core.recipe.custom import CustomLossConfig
from asyncrl.core.recipe.decode import decode_recipe
from asyncrl.core.recipe.loss import LossConfig
from asyncrl.core.recipe.rules.inert import inert
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.recipe.compose import compose

KINDS = [loss.__struct_config__.tag for loss in get_args(LossConfig) if loss is not CustomLossConfig and not loss.imitates]
OTHERS = [kind for kind in KINDS if kind != "reinforce"]
CLIPPED = [kind for kind in OTHERS if kind not in ("sapo", "kl_cov")]


def recipe(algorithm: dict[str, Any], **sections: Any) -> Recipe:
    """One of PPO's clip and the recomputed anchor, but for what ``algorithm`` says."""
    plain = {"name": "x", "steps": 3, "model": {"path": "tiny"}, "environment": {"name": "calculator"}}
    loss = {"kind": "ppo_clip", **algorithm.get("loss", {})}
    correction = {"anchor": "proximal_recomputed", "weight": "token", **algorithm.get("correction", {})}
    return decode_recipe({**plain, "algorithm": {**algorithm, "loss": loss, "correction": correction}, **sections})


def test_the_default_loss_acts():
    plain = {"name": "x", "steps": 3, "model": {"path": "tiny"}, "environment": {"name": "calculator"}}
    assert inert(decode_recipe(plain)) is None


@pytest.mark.parametrize("kind", OTHERS)
def test_with_one_step_from_the_recomputed_anchor_every_loss_is_plain_reinforce(kind: str):
    said = inert(recipe({"loss": {"kind": kind}}))
    assert said is not None
    assert "\n" not in said
    assert f"algorithm.loss of kind {kind} is plain REINFORCE" in said
    for key in re.findall(r"algorithm\.loss\.(\w+)", said.split(" cannot act")[0]):
        assert key in type(recipe({"loss": {"kind": kind}}).algorithm.loss).__struct_fields__
    assert "importance weight, its bound and rejection do act" in said


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "acting",
    [
        {"minibatches": 2},
        {"epochs": 2},
        {"correction": {"anchor": "behaviour", "weight": "none"}},
        {"correction": {"anchor": "proximal_log_linear"}},
    ],
)
def test_what_acts_is_not_named(kind: str, acting: dict[str, Any]):
    if kind == "reinforce":
        acting = {}
    assert inert(recipe({"loss": {"kind": kind}, **acting})) is None


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("sections", [{}, {"batch": {"groups_per_step": 1}}])
def test_what_it_says_to_set_makes_it_act(kind: str, sections: dict[str, Any]):
    said = inert(recipe({"loss": {"kind": kind}}, **sections))
    assert said is not None
    remedies = said.split("; set ")[1].split(", or ")
    assert len(remedies) == 2
    for remedy in remedies:
        algorithm: dict[str, Any] = {"loss": {"kind": kind}}
        for place, value in re.findall(r"algorithm\.([\w.]+)=(\w+)", remedy):
            section, _, key = place.rpartition(".")
            (algorithm.setdefault(section, {}) if section else algorithm)[key] = int(value) if value.isdigit() else value
        assert inert(recipe(algorithm, **sections)) is None


def test_a_loss_that_imitates_has_nothing_that_cannot_act():
    assert inert(recipe({"loss": {"kind": "cross_entropy"}, "correction": {"weight": "none"}})) is None


def test_the_dual_clip_is_named_where_it_is_set():
    assert "dual_clip" not in str(inert(recipe({})))
    assert "algorithm.loss.dual_clip" in str(inert(recipe({"loss": {"dual_clip": 3}})))


@pytest.mark.parametrize("kind", CLIPPED)
def test_a_decaying_trust_region_is_named(kind: str):
    said = inert(recipe({"loss": {"kind": kind}, "correction": {"trust_region_decay": 0.9}}))
    assert "algorithm.correction.trust_region_decay cannot act" in str(said)


def test_dppo_is_told_its_own_anchor_first():
    said = str(inert(recipe({"loss": {"kind": "dppo"}})))
    assert said.split("; set ")[1].startswith("algorithm.correction.anchor=behaviour algorithm.correction.weight=none")


def test_without_staleness_the_behaviour_anchor_would_not_help():
    synchronous = {"max_staleness": 0, "pipeline_depth": 0}
    assert str(inert(recipe({}, buffer=synchronous))).endswith("set algorithm.minibatches=2")


def test_the_critic_s_clip_needs_a_second_step():
    critic: dict[str, Any] = {"advantage": {"kind": "gae"}, "loss": {"kind": "reinforce"}}
    assert str(inert(recipe(critic))).startswith("algorithm.advantage.value_clip cannot act")
    assert inert(recipe({**critic, "minibatches": 2})) is None
    assert inert(recipe({**critic, "advantage": {"kind": "gae", "value_clip": 0}})) is None
    both = str(inert(recipe({"advantage": {"kind": "gae"}})))
    assert "clip_low" in both
    assert "value_clip" in both


def test_a_penalty_that_no_malformed_call_costs_is_told():
    penalty = {"name": "calculator", "malformed_penalty": 0.5}
    said = str(inert(recipe({}, environment=penalty)))
    assert "environment.malformed_penalty cannot act: environment.on_malformed_call is respond" in said
    assert "malformed_penalty" not in str(inert(recipe({}, environment={**penalty, "on_malformed_call": "penalise"})))


SYNCHRONOUS: dict[str, Any] = {"max_staleness": 0, "pipeline_depth": 0}
LOG_LINEAR: dict[str, Any] = {"correction": {"anchor": "proximal_log_linear"}}
HELD_OUT: dict[str, Any] = {"kind": "files", "train": [{"path": "a.jsonl"}]}


@pytest.mark.parametrize(
    ("algorithm", "sections", "said", "mended"),
    [
        (
            {"correction": {"trust_region_decay": 0.5}, "minibatches": 2},
            {"buffer": SYNCHRONOUS},
            "algorithm.correction.trust_region_decay cannot act: with buffer.max_staleness 0",
            {"buffer": {"max_staleness": 1}},
        ),
        (
            {"minibatches": 2},
            {"buffer": {**SYNCHRONOUS, "sampler": {"kind": "prioritised", "staleness_decay": 0.5}}},
            "buffer.sampler.staleness_decay cannot act",
            {"buffer": {"max_staleness": 1, "sampler": {"kind": "prioritised", "staleness_decay": 0.5}}},
        ),
        (
            LOG_LINEAR,
            {"buffer": {"max_staleness": 1}},
            "algorithm.correction.weight token cannot act: with buffer.max_staleness 1",
            {"buffer": {"max_staleness": 2}},
        ),
        (
            LOG_LINEAR,
            {"buffer": {"sampler": {"kind": "prioritised", "exponent": 0, "floor": 1}}},
            "buffer.sampler.floor cannot act",
            {"buffer": {"sampler": {"kind": "prioritised", "exponent": 1, "floor": 1}}},
        ),
        (
            {"advantage": {"kind": "none"}, "teacher": {"path": "x"}, "credit": {"kind": "turn"}, **LOG_LINEAR},
            {},
            "algorithm.credit of kind turn cannot act",
            None,
        ),
        (
            {"advantage": {"kind": "gae", "lam": 0.9, "length_adaptive_alpha": 0.05, "value_clip": 0}, **LOG_LINEAR},
            {},
            "algorithm.advantage.lam cannot act",
            None,
        ),
        (
            LOG_LINEAR,
            {"learner": {"min_lr_ratio": 0.1, "warmup_steps": 2}},
            "learner.min_lr_ratio cannot act: learner.warmup_steps 2 of 3 steps",
            {"learner": {"min_lr_ratio": 0.1, "warmup_steps": 1}},
        ),
        (
            LOG_LINEAR,
            {"evaluation": {"top_p": 0.9, "top_k": 5}},
            "evaluation.top_p, evaluation.top_k cannot act: with evaluation.temperature 0",
            {"evaluation": {"top_p": 0.9, "top_k": 5, "temperature": 1}},
        ),
        (
            LOG_LINEAR,
            {"tasks": {**HELD_OUT, "evaluation": [{"path": "b.jsonl", "weight": 2}]}},
            "tasks.evaluation[0].weight cannot act",
            {"tasks": {**HELD_OUT, "evaluation": [{"path": "b.jsonl"}]}},
        ),
        (
            LOG_LINEAR,
            {"buffer": {"journal": {"kind": "none"}}, "checkpoint": {"every": 5, "dir": "file:///x"}},
            "checkpoint.every, checkpoint.dir cannot act: without a journal",
            {"checkpoint": {"every": 5, "dir": "file:///x"}},
        ),
        (
            LOG_LINEAR,
            {"notify": {"when": "failure"}},
            "notify.when cannot act",
            {"notify": {"when": "failure", "command": ["true"]}},
        ),
    ],
)
def test_a_key_that_another_keeps_from_acting_is_named(
    algorithm: dict[str, Any], sections: dict[str, Any], said: str, mended: dict[str, Any] | None
):
    found = str(inert(recipe(algorithm, **sections)))
    assert found.startswith(said)
    assert "; set " in found or "; leave it out" in found
    if mended is not None:
        assert inert(recipe(algorithm, **mended)) is None


BOUND = ["algorithm.correction.weight=token", "+algorithm.correction.bound.kind=mask"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["buffer.max_staleness=1", "algorithm.correction.anchor=proximal_log_linear", *BOUND],
            "algorithm.correction.weight token",
        ),
        (
            ["buffer.max_staleness=0", "algorithm.correction={anchor: proximal_log_linear, trust_region_decay: 0.5}"],
            "algorithm.correction.trust_region_decay",
        ),
        (
            [
                "algorithm.advantage={kind: none}",
                "+algorithm.teacher={path: tiny}",
                "algorithm.credit={kind: turn, discount: 0.9}",
            ],
            "algorithm.credit of kind turn",
        ),
    ],
)
def test_what_it_says_to_set_is_no_error(overrides: list[str], said: str):
    found = str(inert(compose("quickstart", overrides)))
    assert found.startswith(f"{said} cannot act")
    for remedy in found.partition("; set ")[2].split(", or "):
        compose("quickstart", [*overrides, *remedy.split(" ")])
    assert said not in str(inert(compose("quickstart", [*overrides, *remedy.split(" ")])))
