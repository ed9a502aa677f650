"""Maps this rank's Megatron parameters to rectangles of Hugging Face tensors, both for loading and for publishing.

What always holds: a rank has at most one rectangle of each Hugging Face tensor (a rank's query groups are neighbours),
and the rectangles that all ranks publish cover every tensor exactly once. Each expert has tensors of its own, as in
Qwen's own folders.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor

from asyncrl.core.publication import Shard
from learners.megatron.hugging_face import HuggingFaceTensors
from learners.megatron.model import PolicyModel
from learners.rank import RankSpec


class TensorPart(NamedTuple):
    """The part of a Megatron parameter that belongs to one Hugging Face tensor.

    Attributes:
        name: Hugging Face name; for a layer's tensors, the name within the layer.
        local: view of the parameter, with its values in the rectangle's row-major order.
        extent: extent of the rectangle.
        split: the dimension that tensor-parallel ranks divide; None if each rank has the whole tensor.
    """

    name: str
    local: Tensor
    extent: tuple[int, ...]
    split: int | None


_Rule = Callable[[Tensor, TransformerConfig], list[TensorPart]]


def _whole(name: str) -> _Rule:
    return lambda local, _: [TensorPart(name, local, tuple(local.shape), None)]


def _split(name: str, dimension: int) -> _Rule:
    return lambda local, _: [TensorPart(name, local, tuple(local.shape), dimension)]


def _query_key_value(kind: str) -> _Rule:
    """Rule for the joint matrix: for each query group in turn, Megatron holds the group's queries, then its key, then
    its value."""

    def parts(local: Tensor, config: TransformerConfig) -> list[TensorPart]:
        queries = config.num_attention_heads // config.num_query_groups
        groups = local.view(-1, queries + 2, config.kv_channels, *local.shape[1:])
        taken = {"q": groups[:, :queries], "k": groups[:, queries], "v": groups[:, queries + 1]}
        rest = local.shape[1:]
        return [
            TensorPart(f"self_attn.{letter}_proj.{kind}", view, (view.numel() // max(1, rest.numel()), *rest), 0)
            for letter, view in taken.items()
        ]

    return parts


def _gate_up(local: Tensor, _: TransformerConfig) -> list[TensorPart]:
    gate, up = local.chunk(2)
    return [TensorPart(f"{name}_proj.weight", half, tuple(half.shape), 0) for name, half in (("gate", gate), ("up", up))]


def _within(prefix: str, rule: _Rule) -> _Rule:
    return lambda local, config: [part._replace(name=prefix + part.name) for part in rule(local, config)]


_MODEL_RULES: dict[str, _Rule] = {
    "embedding.word_embeddings.weight": _split("model.embed_tokens.weight", 0),
    "decoder.final_layernorm.weight": _whole("model.norm.weight"),
    "output_layer.weight": _split("lm_head.weight", 0),
}
_LAYER_RULES: dict[str, _Rule] = {
    "input_layernorm.weight": _whole("input_layernorm.weight"),
    "self_attention.linear_qkv.weight": _query_key_value("weight"),
    "self_attention.linear_qkv.bias": _query_key_value("bias"),
    "self_attention.q_layernorm.weight": _whole("self_attn.q_norm.weight"),
    "self_attention.k_layernorm.weight": _whole("self_attn.k_norm.weight"),
    "self_attention.linear_proj.weight": _split("self_attn.o_proj.weight", 1),
    "pre_mlp_layernorm.weight": _whole("post_attention_layernorm.weight"),
    "mlp.linear_fc1.weight": _within("mlp.", _gate_up),
    "mlp.linear_fc2.weight": _split("mlp.down_proj.weight", 1),
    "mlp.router.weight": _whole("mlp.gate.weight"),
    # TransformerEngine's layers hold the norm inside the linear layer that follows it.
    "self_attention.linear_qkv.layer_norm_weight": _whole("input_layernorm.weight"),
    "mlp.linear_fc1.layer_norm_weight": _whole("post_attention_layernorm.weight"),
}
_EXPERT_RULES: dict[str, _Rule] = {"linear_fc1": _gate_up, "linear_fc2": _split("down_proj.weight", 1)}
_EXPERT_NAME = re.compile(
    r"mlp\.experts\.(?:local_experts\.(?P<alone>\d+)\.(?P<layer>linear_fc[12])\.weight"
    # TransformerEngine's grouped layer has a weight for each of the rank's experts.
    r"|(?P<grouped_layer>linear_fc[12])\.weight(?P<grouped>\d+))"
)
ADAPTERS = "adapters"
"""Name of the module beside a linear layer whose parameters belong to no Hugging Face tensor; see :mod:`.lora`."""
_LAYER_NAME = re.compile(r"decoder\.layers\.(\d+)\.(.+)")


class Placed(msgspec.Struct, frozen=True):
    """A rectangle of one Hugging Face tensor, with the view of the Megatron parameter that holds its values.

    Attributes:
        name, shape, start, extent: as in a :class:`~asyncrl.core.publication.ShardRecord`.
        local: view of the parameter; writing to it changes the model.
        published: whether this rank's copy is the one that is published.
    """

    name: str
    shape: tuple[int, ...]
    start: tuple[int, ...]
    extent: tuple[int, ...]
    local: Tensor
    published: bool


def layer_parts(name: str, values: Tensor, config: TransformerConfig) -> list[TensorPart]:
    """Divide ``values`` into the parts that belong to Hugging Face tensors.

    Args:
        name: name of a parameter within its layer.
        values: a tensor with the layout of this rank's part of that parameter.
        config: the model's configuration.
    """
    return _LAYER_RULES[name](values, config)


def placed(chunks: Sequence[PolicyModel], spec: RankSpec) -> Iterator[Placed]:
    """Yield every rectangle that this rank holds, in the order of the chunks' parameters.

    Raises:
        KeyError: for a parameter without a rule, so that none is silently left out.
    """
    for chunk in chunks:
        yield from _placed(chunk, spec)


def _placed(model: PolicyModel, spec: RankSpec) -> Iterator[Placed]:
    first_layer = get_transformer_layer_offset(model.config, model.vp_stage)
    for parameter_name, parameter in model.named_parameters():
        if f".{ADAPTERS}." in parameter_name:
            continue
        layer = _LAYER_NAME.fullmatch(parameter_name)
        expert = _EXPERT_NAME.fullmatch(layer[2]) if layer else None
        ranks, rank, is_first_replica = spec.layout.tensor, spec.tensor_rank, spec.is_first_replica
        prefix = f"model.layers.{int(layer[1]) + first_layer}." if layer else ""
        if expert:
            ranks, rank, is_first_replica = spec.layout.expert_tensor, spec.expert_tensor_rank, spec.is_first_expert_replica
            place = int(expert["alone"] or expert["grouped"])
            number = spec.expert_rank * (model.config.num_moe_experts // spec.layout.expert) + place
            rule = _within(f"mlp.experts.{number}.", _EXPERT_RULES[expert["layer"] or expert["grouped_layer"]])
        else:
            rule = _LAYER_RULES[layer[2]] if layer else _MODEL_RULES[parameter_name]
        # In a tied model, the output layer is the last stage's copy of the embedding, which the first stage holds.
        is_copy = parameter_name == "output_layer.weight" and model.share_embeddings_and_output_weights
        for name, local, extent, split in rule(parameter.data, model.config):
            yield Placed(
                name="model.embed_tokens.weight" if is_copy else prefix + name,
                shape=tuple(size * ranks if axis == split else size for axis, size in enumerate(extent)),
                start=tuple(size * rank if axis == split else 0 for axis, size in enumerate(extent)),
                extent=extent,
                local=local,
                published=is_first_replica and (split is not None or rank == 0) and not is_copy,
            )


@torch.no_grad()
def load(chunks: Sequence[PolicyModel], spec: RankSpec, tensors: HuggingFaceTensors) -> None:
    """Load this rank's parameters, reading no more of each file than they need.

    Raises:
        RecipeError: if a tensor is missing or has another shape.
    """
    for piece in placed(chunks, spec):
        rectangle = tensors.rectangle(piece.name, piece.shape, piece.start, piece.extent)
        piece.local.copy_(rectangle.reshape(piece.local.shape))


def shards(chunks: Sequence[PolicyModel], spec: RankSpec) -> Iterator[Shard]:
    """Yield the contiguous rectangles that this rank publishes. Some are views of the parameters: read them before the
    next training step."""
    for piece in placed(chunks, spec):
        if piece.published:
            yield Shard(piece.name, piece.shape, piece.start, piece.local.reshape(piece.extent).contiguous())
