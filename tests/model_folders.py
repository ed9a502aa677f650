"""Hugging Face folders that a plan accepts: a configuration, the header of all its weights, and a tokenizer that fits in."""

import json
import math
import struct
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from transformers import PreTrainedTokenizerFast

from asyncrl.bench.gpu.settings import ModelSize
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.learners.tiny.tokenizer_alone import tiny_tokenizer
from asyncrl.run.models.model_shape import ModelShape

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
}
"""The configuration of a model that a plan accepts."""


def write_model(folder: Path, config: dict[str, Any]) -> Path:
    """Write a model's folder. Its weights are zeros that take no room on the disk, whatever their number."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_weights(folder, config)
    write_tokenizer(folder)
    return folder


def qwen3_folder(folder: Path, size: ModelSize) -> Path:
    """Write the folder of one of the GPU benchmark's models, which are Qwen3's."""
    sizes = {
        "hidden_size": size.hidden,
        "intermediate_size": size.feed_forward,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.key_value_heads,
        "head_dim": size.head_dim,
        "vocab_size": size.vocabulary,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": size.tied,
    }
    return write_model(folder, SMALL | sizes)


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer that the tiny model of the calculator has, with less than 512 tokens, and its chat template."""
    _tokenizer().save_pretrained(folder)


@cache
def _tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer({"": ClassEnvironmentConfig(name="calculator")}, 0)


def write_weights(folder: Path, config: dict[str, Any], **more: tuple[int, ...]) -> None:
    """Write weights of bfloat16 for ``config``, and ``more`` tensors of other shapes."""
    header, end = {}, 0
    shapes = {tensor.name: tensor.shape for tensor in msgspec.convert(config, ModelShape).architecture.tensors()}
    for name, shape in (shapes | more).items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        file.truncate(file.tell() + end)
