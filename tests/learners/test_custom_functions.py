"""Functions of the user's own: equal to the built-in kinds that they reproduce, and refused where they break their contract."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import rank_side
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_samples import assemble, make_batch, make_model, make_recipe, untimed
from loss_samples import decoupled, pack_tokens, rows_of_tokens
from own_functions import LINEAR, OWN
from ranks import run_ranks

from asyncrl.core.errors import RecipeError
from asyncrl.core.measures.metrics import combine
from asyncrl.core.recipe.advantage import GrpoAdvantageConfig
from asyncrl.core.recipe.algorithm import AlgorithmConfig, SequenceMeanTokenMeanConfig
from asyncrl.core.recipe.custom import CustomLossConfig, CustomWeightConfig, LinearScheduleConfig
from asyncrl.core.recipe.decode import decode_recipe
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.loss import GspoLossConfig, PpoClipLossConfig
from asyncrl.learners.algorithm.losses import policy_loss
from asyncrl.learners.custom.check import check_customs
from asyncrl.learners.learning_rate import learning_rate

BUILT_IN = AlgorithmConfig(
    advantage=GrpoAdvantageConfig(),
    loss=PpoClipLossConfig(clip_low=0.2, clip_high=0.28),
    aggregation=SequenceMeanTokenMeanConfig(),
    correction=decoupled(),
    minibatches=2,
)
PAIRS = [
    (PpoClipLossConfig(clip_low=0.2, clip_high=0.28), "ppo_clip", {"low": 0.2, "high": 0.28}),
    (GspoLossConfig(clip_low=0.02, clip_high=0.03), "gspo", {"low": 0.02, "high": 0.03}),
]


@settings(max_examples=60)
@given(rows_of_tokens(), st.sampled_from(PAIRS), st.booleans())
def test_the_same_loss_and_gradient_to_the_bit(rows, pair, weighted):
    built_in, name, options = pair
    correction = decoupled(weight="token" if weighted else "none")
    own = decoupled(weight=CustomWeightConfig(name="own_functions:importance") if weighted else "none")
    found = []
    for config in (
        AlgorithmConfig(loss=built_in, correction=correction),
        AlgorithmConfig(loss=CustomLossConfig(name=f"own_functions:{name}", options=options), correction=own),
    ):
        theta, proximal, tokens = pack_tokens(rows)
        outcome = policy_loss(theta.requires_grad_(), proximal, torch.zeros_like(theta), tokens, config, 3.0)
        outcome.loss.backward()
        found.append((outcome.loss, theta.grad, outcome.correction.weight, outcome.correction.truncated))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_the_same_rate_in_every_step():
    own = LearnerConfig(lr=2e-4, warmup_steps=3, min_lr_ratio=0.1, schedule=LINEAR)
    built_in = msgspec.structs.replace(own, schedule=LinearScheduleConfig())
    assert [learning_rate(step, 20, own) for step in range(25)] == [learning_rate(step, 20, built_in) for step in range(25)]


def test_a_learner_takes_the_same_steps_to_the_bit_on_two_ranks(tmp_path: Path):
    folder = make_model(tmp_path / "model")
    batch, episodes = make_batch()
    trained = []
    for algorithm, schedule in ((BUILT_IN, LinearScheduleConfig()), (OWN, LINEAR)):
        recipe = make_recipe(folder, data=2, schedule=schedule, min_lr_ratio=0.5)
        recipe = msgspec.structs.replace(recipe, algorithm=algorithm)
        results = run_ranks(rank_side.train, recipe, folder, batch, episodes, 2, None, data=2)
        readings = [untimed(combine(r for reports, _, _ in results for r in reports[step].readings)) for step in range(2)]
        trained.append((readings, assemble([shards for _, shards, _ in results])))
    (readings, weights), (own_readings, own_weights) = trained
    assert own_readings == readings
    assert readings[0]["loss/clip_fraction"] >= 0
    assert readings[0]["learner/grad_norm"] > 0
    for name, tensor in weights.items():
        np.testing.assert_array_equal(own_weights[name], tensor)


PLAIN: dict[str, Any] = {"name": "x", "steps": 30, "model": {"path": "tiny"}, "environment": {"name": "calculator"}}
ANCHORED = {"anchor": "proximal_recomputed"}


def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str, body: str) -> list[str]:
    """Check a recipe that names ``f`` of a module with this body; returns the remarks."""
    (tmp_path / "own.py").write_text(f"import torch\n\n{body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    spec = {"kind": "custom", "name": "own:f"}
    match section:
        case "schedule":
            sections: dict[str, Any] = {"learner": {"schedule": spec}}
        case "weight":
            sections = {"algorithm": {"correction": {**ANCHORED, "weight": spec}}}
        case _:
            sections = {"algorithm": {section: spec}}
    return check_customs(decode_recipe(PLAIN | sections))


PPO = "-t.log_ratio.exp() * t.advantages"
BROKEN = {
    # shape and type
    ("loss", f"def f(t):\n    return ({PPO}).mean()"): "returned a tensor of shape (); return one of shape (24,)",
    ("loss", "def f(t):\n    return 1.0"): "returned 1; return a tensor of shape (24,): the loss of each token",
    ("loss", f"def f(t):\n    return {PPO}, t.log_ratio"): "for the tokens whose gradient it cut; return a bool tensor",
    ("loss", f"def f(t):\n    return {PPO}, t.mask, t.mask"): "returned 3 values; return the losses, or a pair",
    ("loss", "def f(t):\n    return t.rows.index"): "returned a tensor of torch.int64; return floating-point numbers",
    ("advantage", "def f(r):\n    return r.values[:-1]"): "returned a tensor of shape (10,); return one of shape (11,)",
    ("aggregation", "def f(r):\n    return r.weights"): "return a pair: the share of each row, and the denominator",
    ("weight", "def f(t):\n    return 2.0"): "the weight of each token",
    (
        "schedule",
        "def f(a):\n    return torch.tensor(1.0)",
    ): "a tensor of shape () and torch.float32 for training step 0 of 30",
    # values
    ("loss", f"def f(t):\n    return {PPO} / (1 - t.logp.exp())"): "returned loss inf for a token with logp 0,",
    (
        "loss",
        f"def f(t):\n    return torch.where(t.logp < -0.01, {PPO} * torch.log(1 - t.logp.exp()), t.logp)",
    ): "has gradient nan for a token with logp 0,",
    (
        "advantage",
        "def f(r):\n    out = r.values.clone()\n    for g in r.group.unique():\n        i = r.group == g\n"
        "        out[i] = (r.values[i] - r.values[i].mean()) / r.values[i].std(correction=0)\n    return out",
    ): "returned advantage nan in a group of returns 1, 1, 1; give groups of equal returns, or of one, an advantage of 0",
    ("aggregation", "def f(r):\n    return 1 / r.loss_tokens, r.weights.sum()"): "clamp(min=1) divisors",
    ("aggregation", "def f(r):\n    return r.weights, 0"): "returned denominator 0 for rows of 5, 1, 0, 7, 3 tokens",
    ("weight", "def f(t):\n    return t.log_ratio"): "return finite weights of at least 0",
    ("schedule", "def f(a):\n    return a.lr * (0.5 - a.step / a.steps)"): "for training step 16 of 30; return a finite number",
    ("schedule", "def f(a):\n    return 0"): "returned 0 for all 30 training steps",
    # gradient
    ("loss", "def f(t):\n    return -t.log_ratio.detach().exp() * t.advantages"): "returned a loss without gradient",
    ("loss", f"p = torch.ones(1, requires_grad=True)\ndef f(t):\n    return {PPO} * p"): "of shape (1,) of its own; the gradient",
    ("loss", f"def f(t):\n    return 0 * {PPO}"): "has gradient 0 for every token",
    (
        "loss",
        "def f(t):\n    m = t.rows.means(t.log_ratio, torch.ones_like(t.mask))[t.rows.index]\n    return -m.exp() * t.advantages",
    ): "lets tokens that are not in tokens.mask change the loss of other tokens",
    # packing and order
    ("loss", f"def f(t):\n    return {PPO} - t.advantages.mean() * t.logp"): "alone in a micro-batch, so micro-batches and ranks",
    ("loss", f"def f(t):\n    return {PPO} * torch.arange(len(t.logp))"): "in another order, so micro-batches and ranks",
    (
        "loss",
        f"def f(t):\n    return {PPO} + 0 * t.staleness.max()",
    ): "in line 4, for a micro-batch without rows, which ranks may get",
    ("weight", "def f(t):\n    return t.log_ratio.softmax(0)"): "alone in a micro-batch, so micro-batches and ranks",
    ("advantage", "def f(r):\n    return r.values - r.values.cumsum(0)"): "when the same episodes come in another order",
    ("advantage", "def f(r):\n    return r.values * r.group"): "when the groups are numbered otherwise",
    ("aggregation", "def f(r):\n    return r.weights.cumsum(0), 1"): "when the same rows come in another order",
    # purity
    ("loss", f"def f(t):\n    return {PPO} * torch.rand(1)"): "returned two results for the same argument",
    ("loss", f"def f(t):\n    t.advantages.mul_(2)\n    return {PPO}"): "changed advantages of its argument; make a new tensor",
    ("advantage", "def f(r):\n    return torch.randn(len(r.values))"): "returned two results for the same argument",
    ("weight", "def f(t):\n    t.rows.index.zero_()\n    return t.log_ratio.exp()"): "changed rows.index of its argument",
    (
        "schedule",
        "calls = []\ndef f(a):\n    calls.append(a)\n    return a.lr * len(calls)",
    ): "returned two learning rates for training step 0, when it was asked again",
    # errors
    ("loss", "def f(t):\n    return -t.ratio"): "raised AttributeError: 'LossInputs' object has no attribute 'ratio' in line 4;",
    ("loss", "def f(t):\n    raise SystemExit('bye')"): "raised SystemExit: bye in line 4",
}


@pytest.mark.parametrize(("section", "body"), BROKEN)
def test_a_broken_contract_is_refused_with_place_line_and_remedy(tmp_path, monkeypatch, section: str, body: str):
    with pytest.raises(RecipeError) as caught:
        checked(tmp_path, monkeypatch, section, body)
    places = {"weight": "algorithm.correction.weight", "schedule": "learner.schedule"}
    assert caught.value.place == places.get(section, f"algorithm.{section}")
    line = 3 + body[: body.index("def f")].count("\n")
    assert caught.value.problem.startswith(f"own:f ({tmp_path}/own.py:{line}) ")
    assert BROKEN[section, body] in str(caught.value)


@pytest.mark.parametrize(
    ("body", "place", "told"),
    [
        ("f = 3", "algorithm.loss.name", "is an object of type int, not a function; define it with `def` in"),
        ("def g(t): ...", "algorithm.loss.name", "'f' of module own does not exist; name one of g"),
        ("async def f(t): ...", "algorithm.loss.name", "is async or a generator; write a plain function"),
        ("def f(t, clip): ...", "algorithm.loss.options", "missing a required argument: 'clip'; its options are: clip"),
        ("1 / 0", "algorithm.loss.name", "importing module 'own' failed with ZeroDivisionError"),
    ],
)
def test_what_is_no_function_is_refused(tmp_path, monkeypatch, body: str, place: str, told: str):
    with pytest.raises(RecipeError) as caught:
        checked(tmp_path, monkeypatch, "loss", body)
    assert caught.value.place == place
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("section", "body", "told"),
    [
        ("loss", "def f(t):\n    return t.log_ratio.exp() * t.advantages", "its sign may be turned round"),
        ("loss", "def f(t):\n    return -t.logp * t.advantages", "does not depend on tokens.log_ratio"),
        ("advantage", "def f(r):\n    return -r.values", "gives higher returns lower advantages"),
    ],
)
def test_what_is_probably_not_meant_is_a_remark(tmp_path, monkeypatch, section: str, body: str, told: str):
    (remark,) = checked(tmp_path, monkeypatch, section, body)
    assert told in remark


def test_functions_that_reproduce_built_in_kinds_keep_every_contract():
    recipe = decode_recipe(PLAIN)
    learner = msgspec.structs.replace(recipe.learner, schedule=LINEAR)
    assert check_customs(msgspec.structs.replace(recipe, algorithm=OWN, learner=learner)) == []
