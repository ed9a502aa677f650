"""Checks a reward model's folder without loading the model: that it scores, and knows the policy's tokens."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.weight_files import StoredTensor, check_present, stored_tensors
from asyncrl.core.recipe.reward import ModelRewardConfig
from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.run.models.dequantised import quantisation
from asyncrl.run.models.hub import model_file
from asyncrl.run.models.model_shape import TINY, ModelShape

PLACE = "reward.path"
_HEAD = "score.weight"
_WITH_HEAD = {"LlamaForSequenceClassification", "Qwen2ForSequenceClassification", "Qwen3ForSequenceClassification"}
"""Classifiers whose scores come from the tensor :data:`_HEAD`."""


class _Config(msgspec.Struct, frozen=True):
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
    path = Path(reward.path) / "config.json"
    try:
        read = json.loads(path.read_bytes())
        config, shape = msgspec.convert(read, _Config), msgspec.convert(read, ModelShape)
    except FileNotFoundError as error:
        raise RecipeError(PLACE, f"there is no {path}", "name a Hugging Face folder that holds config.json") from error
    except (OSError, ValueError, msgspec.ValidationError) as error:
        remedy = "name the folder of a sequence classifier made of a dense decoder"
        raise RecipeError(PLACE, f"cannot read {path}: {error}", remedy) from error
    if not any(name.endswith("ForSequenceClassification") for name in config.architectures):
        problem = f"{path} names the architectures {list(config.architectures)}, none of which scores sequences"
        raise RecipeError(PLACE, problem, "name the folder of a ...ForSequenceClassification with one label")
    if config.labels != 1:
        problem = f"{path} has {config.labels} labels, and a reward is one number"
        raise RecipeError(PLACE, problem, "name a model that was trained with num_labels 1")
    if config.pad_token_id is None:
        problem = f"{path} has no pad_token_id, without which episodes cannot be scored together"
        raise RecipeError(PLACE, problem, "set it there to a token that no episode ends with")
    if not 0 <= config.pad_token_id < shape.vocab_size:
        problem = f"{path} has pad_token_id {config.pad_token_id}, which is not one of the model's {shape.vocab_size} tokens"
        raise RecipeError(PLACE, problem, f"set it there to one from 0 to {shape.vocab_size - 1} that no episode ends with")
    if policy.max_context > shape.max_position_embeddings:
        problem = f"its {shape.max_position_embeddings} positions cannot hold an episode of model.max_context"
        raise RecipeError(PLACE, f"{problem} {policy.max_context} tokens", "lower that, or name another model")
    if policy.path != TINY:
        check_vocabulary(reward, model_file(policy.path, "tokenizer.json", "model.path").parent)
    stored = stored_tensors(path.parent, PLACE)
    if set(config.architectures) & _WITH_HEAD and not quantisation(path.parent):
        _check_whole(stored, shape, path.parent)
    return shape


def _check_whole(stored: Mapping[str, StoredTensor], shape: ModelShape, folder: Path) -> None:
    """Check that no weight of a classifier is missing: those would be random."""
    if _HEAD not in stored:
        raise RecipeError(PLACE, f"{folder} has no weights named {[_HEAD]}", "name the folder of a trained reward model")
    decoder = (shape.architectures or ("",))[0].replace("ForSequenceClassification", "ForCausalLM")
    below = msgspec.structs.replace(shape, architectures=(decoder,), tie_word_embeddings=True)
    check_present(stored, below.architecture.tensors(), folder, PLACE)


def check_vocabulary(reward: ModelRewardConfig, policy: Path) -> None:
    """Raise a ``RecipeError`` if the reward model lacks a token of the policy in ``policy``, or gives it another id."""
    known = vocabulary(Path(reward.path), PLACE)
    other = "name a reward model with the policy's tokenizer, or serve it and use reward.kind remote, which gets text"
    for token, number in vocabulary(policy, "model.path").items():
        if known.get(token) != number:
            has = f"id {known[token]}" if token in known else "no id"
            problem = f"token {token!r} has id {number} for the policy, and {has} in the tokenizer of {reward.path}"
            raise RecipeError(PLACE, problem, other)


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
