"""Checks the folder of a reference policy without loading the model: that the policy's code can run its weights."""

import json
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.hub import is_hub_id
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.models.dequantised import quantisation
from asyncrl.run.models.hub import model_file
from asyncrl.run.models.model_shape import TINY, ModelShape, read_shape
from asyncrl.run.models.model_sources import REFERENCE, named_reference
from asyncrl.run.models.reward_folder import vocabulary

_REMEDY = "name a model that was trained from the same one as model.path, or leave the key out for model.path itself"


def check_reference(recipe: Recipe, policy: ModelShape) -> None:
    """Check that the reference policy, if the recipe names one, goes with the policy of shape ``policy``.

    Raises:
        RecipeError: it is not there, is of another architecture or size, or has other tokens.
    """
    named = named_reference(recipe)
    if not named:
        return
    if named == TINY:
        raise RecipeError(REFERENCE, f"{TINY} is made anew for each environment and seed", _REMEDY)
    try:
        shape = read_shape(named)
        if method := quantisation(model_file(named, "config.json", REFERENCE).parent):
            problem = f"the weights of {named} are quantised ({method}), and only those of model.path are dequantised"
            raise RecipeError(REFERENCE, problem, "name a folder of unquantised weights")
    except RecipeError as error:
        raise RecipeError(REFERENCE, error.problem, error.remedy.replace(f", or {TINY}", "")) from error
    _refuse_other_sizes(named, shape, policy)
    if recipe.model.path == TINY:
        return
    _refuse_other_arithmetic(named, recipe.model.path)
    _refuse_other_tokens(named, recipe.model.path)


def _refuse_other_sizes(named: str, shape: ModelShape, policy: ModelShape) -> None:
    for name in ModelShape.__struct_fields__:
        if name not in ("max_position_embeddings", "architectures") and getattr(shape, name) != getattr(policy, name):
            problem = f"config.json of {named} has {name} {getattr(shape, name)}, and the policy has {getattr(policy, name)}"
            raise RecipeError(REFERENCE, problem, _REMEDY)


class _Arithmetic(msgspec.Struct, frozen=True):
    """What a config says about how a model computes, as far as models of one architecture differ in it."""

    architectures: tuple[str, ...] = ()
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_parameters: dict[str, Any] = {}
    rope_scaling: dict[str, Any] = {}
    norm_topk_prob: bool = False
    num_experts_per_tok: int = 8

    @property
    def values(self) -> dict[str, object]:
        rope = {**self.rope_scaling, **self.rope_parameters}
        theta = rope.pop("rope_theta", None) or self.rope_theta or 10_000.0
        kind = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
        scaled = {} if kind == "default" else {name: value for name, value in sorted(rope.items()) if name != "type"}
        return {
            "architecture": self.architectures[0],
            "hidden_act": self.hidden_act,
            "rope_type": kind,
            "rope_parameters": scaled,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": theta,
            "norm_topk_prob": self.norm_topk_prob,
            "num_experts_per_tok": self.num_experts_per_tok,
        }


def _refuse_other_arithmetic(named: str, policy: str) -> None:
    theirs, ours = _arithmetic(named), _arithmetic(policy)
    for name, value in ours.items():
        if theirs[name] != value:
            raise RecipeError(REFERENCE, f"config.json of {named} has {name} {theirs[name]}, and the policy has {value}", _REMEDY)


def _arithmetic(path: str) -> dict[str, object]:
    read = json.loads(model_file(path, "config.json", REFERENCE).read_bytes())
    return msgspec.convert({key: value for key, value in read.items() if value is not None}, _Arithmetic).values


def _refuse_other_tokens(named: str, policy: str) -> None:
    """Compare the tokenizers, if the reference has one: its own is never used, since it is given the policy's tokens."""
    if not is_hub_id(named) and not (Path(named) / "tokenizer.json").is_file():
        return
    known = vocabulary(model_file(named, "tokenizer.json", REFERENCE).parent, REFERENCE)
    for token, number in vocabulary(model_file(policy, "tokenizer.json", "model.path").parent, "model.path").items():
        if known.get(token) != number:
            has = f"as {known[token]}" if token in known else "not at all"
            problem = f"the policy writes token {token!r} as {number}, which the tokenizer of {named} has {has}"
            raise RecipeError(REFERENCE, problem, _REMEDY)
