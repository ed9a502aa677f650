"""Checks the folders of the models beside the policy without loading them: reference policy, reward model and teacher.

What always holds: a token has the same id for each of them as for the policy, since ids of the policy are what they are given.
"""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.hub import is_hub_id
from asyncrl.core.files.weight_files import DTYPES, StoredTensor, check_present, stored_tensors
from asyncrl.core.recipe.reward import ModelRewardConfig
from asyncrl.core.recipe.schema import ModelConfig, Recipe
from asyncrl.core.recipe.teacher import TeacherConfig
from asyncrl.core.storage.address import is_address
from asyncrl.run.models.dequantised import quantisation
from asyncrl.run.models.hub import folder_with_weights, model_file
from asyncrl.run.models.model_shape import ELEMENT_BYTES, TINY, ModelShape, read_shape
from asyncrl.run.models.model_sources import REFERENCE, named_reference

_REMEDY = "name a model that was trained from the same one as model.path, or leave the key out for model.path itself"
REWARD = "reward.path"
_HEAD = "score.weight"
_WITH_HEAD = {"LlamaForSequenceClassification", "Qwen2ForSequenceClassification", "Qwen3ForSequenceClassification"}
"""Classifiers whose scores come from the tensor :data:`_HEAD`."""
TEACHER = "algorithm.teacher.path"


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
    if not is_hub_id(named) and not is_address(named) and not (Path(named) / "tokenizer.json").is_file():
        return
    theirs, ours = (model_file(path, "tokenizer.json", place) for path, place in ((named, REFERENCE), (policy, "model.path")))
    _refuse_unlike_tokens(named, theirs.parent, ours.parent, REFERENCE, _REMEDY)


def _refuse_unlike_tokens(named: str, folder: Path, policy: Path, place: str, remedy: str) -> None:
    """Refuse the model ``named``, whose tokenizer is in ``folder``, if an id of the policy means another token to it, or none."""
    known = vocabulary(folder, place)
    for token, number in vocabulary(policy, "model.path").items():
        if known.get(token) != number:
            has = f"id {known[token]}" if token in known else "no id"
            problem = f"token {token!r} has id {number} for the policy, and {has} in the tokenizer of {named}"
            raise RecipeError(place, problem, remedy)


class _ClassifierConfig(msgspec.Struct, frozen=True):
    architectures: tuple[str, ...] = ()
    num_labels: int | None = None
    id2label: dict[str, str] | None = None
    pad_token_id: int | None = None

    @property
    def labels(self) -> int:
        """The number of labels; by default two, as in Hugging Face."""
        if self.num_labels is not None:
            return self.num_labels
        return 2 if self.id2label is None else len(self.id2label)


def read_reward_shape(reward: ModelRewardConfig, policy: ModelConfig) -> ModelShape:
    """Read the shape of the reward model that scores ``policy``.

    Raises:
        RecipeError: the folder is not that of a classifier with one label, or it does not fit the policy.
    """
    if is_address(reward.path):
        problem = f"{reward.path}: it is in an object store, and a reward model is read from a folder"
        raise RecipeError(REWARD, problem, "copy it to a folder, and name that")
    path = Path(reward.path) / "config.json"
    try:
        read = json.loads(path.read_bytes())
        config, shape = msgspec.convert(read, _ClassifierConfig), msgspec.convert(read, ModelShape)
    except FileNotFoundError as error:
        raise RecipeError(REWARD, f"there is no {path}", "name a Hugging Face folder that holds config.json") from error
    except (OSError, ValueError, msgspec.ValidationError) as error:
        remedy = "name the folder of a sequence classifier made of a dense decoder"
        raise RecipeError(REWARD, f"cannot read {path}: {error}", remedy) from error
    if not any(name.endswith("ForSequenceClassification") for name in config.architectures):
        problem = f"{path} names the architectures {list(config.architectures)}, none of which scores sequences"
        raise RecipeError(REWARD, problem, "name the folder of a ...ForSequenceClassification with one label")
    if config.labels != 1:
        problem = f"{path} has {config.labels} labels, and a reward is one number"
        raise RecipeError(REWARD, problem, "name a model that was trained with num_labels 1")
    if config.pad_token_id is None:
        problem = f"{path} has no pad_token_id, without which episodes cannot be scored together"
        raise RecipeError(REWARD, problem, "set it there to a token that no episode ends with")
    if not 0 <= config.pad_token_id < shape.vocab_size:
        problem = f"{path} has pad_token_id {config.pad_token_id}, which is not one of the model's {shape.vocab_size} tokens"
        raise RecipeError(REWARD, problem, f"set it there to one from 0 to {shape.vocab_size - 1} that no episode ends with")
    if policy.max_context > shape.max_position_embeddings:
        problem = f"its {shape.max_position_embeddings} positions cannot hold an episode of model.max_context"
        raise RecipeError(REWARD, f"{problem} {policy.max_context} tokens", "lower that, or name another model")
    if policy.path != TINY:
        check_vocabulary(reward, model_file(policy.path, "tokenizer.json", "model.path").parent)
    stored = stored_tensors(path.parent, REWARD)
    if set(config.architectures) & _WITH_HEAD and not quantisation(path.parent):
        _check_whole(stored, shape, path.parent)
    return shape


def _check_whole(stored: Mapping[str, StoredTensor], shape: ModelShape, folder: Path) -> None:
    """Check that no weight of a classifier is missing: those would be random."""
    if _HEAD not in stored:
        raise RecipeError(REWARD, f"{folder} has no weights named {[_HEAD]}", "name the folder of a trained reward model")
    decoder = (shape.architectures or ("",))[0].replace("ForSequenceClassification", "ForCausalLM")
    below = msgspec.structs.replace(shape, architectures=(decoder,), tie_word_embeddings=True)
    check_present(stored, below.architecture.tensors(), folder, REWARD)


def check_vocabulary(reward: ModelRewardConfig, policy: Path) -> None:
    """Raise a ``RecipeError`` if the reward model lacks a token of the policy in ``policy``, or gives it another id."""
    other = "name a reward model with the policy's tokenizer, or serve it and use reward.kind remote, which gets text"
    _refuse_unlike_tokens(reward.path, Path(reward.path), policy, REWARD, other)


def vocabulary(folder: Path, place: str) -> dict[str, int]:
    """Read the tokens of a folder's ``tokenizer.json`` and their numbers; a ``RecipeError`` at ``place`` says why it cannot."""
    path = folder / "tokenizer.json"
    try:
        read: Any = json.loads(path.read_bytes())
        listed = read["model"]["vocab"]
        # A dictionary, or for unigram models a list of tokens and their log-probabilities.
        vocabulary = dict(listed) if isinstance(listed, dict) else {token: number for number, (token, _) in enumerate(listed)}
        return {**vocabulary, **{added["content"]: added["id"] for added in read.get("added_tokens", ())}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"cannot read the tokens in {path} ({type(error).__name__}: {error})"
        raise RecipeError(place, problem, "save the tokenizer into that folder with transformers") from error


class _TeacherConfig(msgspec.Struct, frozen=True):
    architectures: tuple[str, ...] = ()
    max_position_embeddings: int | None = None
    text_config: dict[str, object] = {}

    @property
    def positions(self) -> int | None:
        """The most tokens that the model takes; None if its configuration does not say."""
        found = self.text_config.get("max_position_embeddings", self.max_position_embeddings)
        return found if isinstance(found, int) else None


def check_teacher(recipe: Recipe, policy: Path | None) -> None:
    """Check the folder of the recipe's teacher, if it names one.

    Args:
        policy: the folder with the policy's tokenizer; None if it is not made yet.

    Raises:
        RecipeError: it is not there, cannot hold an episode, lacks weights, or its tokenizer is another one.
    """
    teacher = recipe.algorithm.teacher
    if teacher is None or teacher.path is None:
        return
    if teacher.path == TINY:
        raise RecipeError(TEACHER, f"{TINY} is made anew for each environment and seed", "name the folder of a model")
    config = _read_config(teacher.path)
    needed = recipe.model.max_context + 1
    if config.positions is not None and config.positions < needed:
        problem = (
            f"its {config.positions} positions cannot hold an episode of model.max_context {needed - 1} tokens, and one more"
        )
        raise RecipeError(TEACHER, problem, f"lower that to at most {config.positions - 1}, or name another model")
    if policy is not None:
        known = model_file(teacher.path, "tokenizer.json", TEACHER).parent
        remedy = "name a teacher with the policy's tokenizer: ids of the policy are all it is given"
        _refuse_unlike_tokens(teacher.path, known, policy, TEACHER, remedy)
    if (folder := folder_with_weights(teacher.path)) is not None:
        stored_tensors(folder, TEACHER)


def _read_config(path: str) -> _TeacherConfig:
    file = model_file(path, "config.json", TEACHER)
    try:
        return msgspec.convert(json.loads(file.read_bytes()), _TeacherConfig)
    except FileNotFoundError as error:
        raise RecipeError(TEACHER, f"there is no {file}", "name a Hugging Face folder, or an id on the hub") from error
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise RecipeError(TEACHER, f"cannot read {file}: {error}", "name the folder of a model that vLLM has") from error


def weight_bytes(teacher: TeacherConfig, dtype: str) -> int:
    """Return the memory that a teacher's weights take in an engine, in bytes; 0 while they are yet to be fetched."""
    folder = None if teacher.path is None else folder_with_weights(teacher.path)
    if folder is None:
        return 0
    element = ELEMENT_BYTES[dtype]
    stored = stored_tensors(folder, TEACHER).values()
    return sum(prod(each.shape) * (element if each.dtype in DTYPES else 1) for each in stored)
