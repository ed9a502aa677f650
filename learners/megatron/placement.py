"""Maps this rank's Megatron parameters to rectangles of Hugging Face tensors, both for loading and for publishing.

Which rectangles a rank holds follows from the architecture (``learners/held_weights.py``); here they are found in Megatron's
parameters. What always holds: Megatron's parameters hold exactly these rectangles, each once (a rank's query groups are
neighbours).
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor

from asyncrl.core.architectures.architecture import EMBEDDING, OUTPUT, divided_dimension
from asyncrl.core.publication import Shard
from asyncrl.learners.held_weights import held_weights
from asyncrl.learners.megatron.hugging_face import HuggingFaceTensors
from asyncrl.learners.megatron.model import PolicyModel
from asyncrl.learners.rank import RankSpec


class TensorPart(NamedTuple):
    """The part of a Megatron parameter that belongs to one Hugging Face tensor.

    Attributes:
        name: Hugging Face name; for a layer's tensors, the name within the layer.
        local: view of the parameter, with its values in the rectangle's row-major order.
    """

    name: str
    local: Tensor

    @property
    def split(self) -> int | None:
        """The dimension that tensor-parallel ranks divide; None if each rank has the whole tensor."""
        return divided_dimension(self.name)


_Rule = Callable[[Tensor, TransformerConfig], list[TensorPart]]


def _all_of(name: str) -> _Rule:
    return lambda local, _: [TensorPart(name, local)]


def _query_key_value(kind: str) -> _Rule:
    """Rule for the joint matrix: for each query group in turn, Megatron holds the group's queries, then its key, then
    its value."""

    def parts(local: Tensor, config: TransformerConfig) -> list[TensorPart]:
        queries = config.num_attention_heads // config.num_query_groups
        groups = local.view(-1, queries + 2, config.kv_channels, *local.shape[1:])
        taken = {"q": groups[:, :queries], "k": groups[:, queries], "v": groups[:, queries + 1]}
        return [TensorPart(f"self_attn.{letter}_proj.{kind}", view) for letter, view in taken.items()]

    return parts


def _halves(first: str, second: str) -> _Rule:
    """Rule for the joint matrix of a feed-forward block's gate, in the first half of the rows, and its other input."""
    return lambda local, _: [
        TensorPart(f"{name}.weight", half) for name, half in zip((first, second), local.chunk(2), strict=True)
    ]


_gate_up = _halves("gate_proj", "up_proj")


def _within(prefix: str, rule: _Rule) -> _Rule:
    return lambda local, config: [part._replace(name=prefix + part.name) for part in rule(local, config)]


_MODEL_RULES: dict[str, _Rule] = {
    "embedding.word_embeddings.weight": _all_of(EMBEDDING),
    "decoder.final_layernorm.weight": _all_of("model.norm.weight"),
    "output_layer.weight": _all_of(OUTPUT),
}
_LAYER_RULES: dict[str, _Rule] = {
    "input_layernorm.weight": _all_of("input_layernorm.weight"),
    "self_attention.linear_qkv.weight": _query_key_value("weight"),
    "self_attention.linear_qkv.bias": _query_key_value("bias"),
    "self_attention.q_layernorm.weight": lambda local, config: [
        TensorPart("self_attn.q_norm.weight" if config.latent is None else "self_attn.q_a_layernorm.weight", local)
    ],
    "self_attention.k_layernorm.weight": _all_of("self_attn.k_norm.weight"),
    "self_attention.linear_proj.weight": _all_of("self_attn.o_proj.weight"),
    "self_attention.linear_proj.bias": _all_of("self_attn.o_proj.bias"),
    "self_attention.core_attention.softmax_offset": _all_of("self_attn.sinks"),
    "self_attention.linear_q_proj.weight": _all_of("self_attn.q_proj.weight"),
    "self_attention.linear_q_down_proj.weight": _all_of("self_attn.q_a_proj.weight"),
    "self_attention.linear_q_up_proj.weight": _all_of("self_attn.q_b_proj.weight"),
    "self_attention.linear_kv_down_proj.weight": _all_of("self_attn.kv_a_proj_with_mqa.weight"),
    "self_attention.kv_layernorm.weight": _all_of("self_attn.kv_a_layernorm.weight"),
    "self_attention.linear_kv_up_proj.weight": _all_of("self_attn.kv_b_proj.weight"),
    "pre_mlp_layernorm.weight": _all_of("post_attention_layernorm.weight"),
    "mlp.linear_fc1.weight": _within("mlp.", _gate_up),
    "mlp.linear_fc2.weight": _all_of("mlp.down_proj.weight"),
    # TransformerEngine's layers hold the norm inside the linear layer that follows it.
    "self_attention.linear_qkv.layer_norm_weight": _all_of("input_layernorm.weight"),
    "mlp.linear_fc1.layer_norm_weight": _all_of("post_attention_layernorm.weight"),
}
_JOINT_RULES: dict[str, _Rule] = {
    "linear_fc1.weight": lambda local, _: [TensorPart("gate_up_proj", local.unflatten(0, (2, -1)).permute(2, 1, 0))],
    "linear_fc1.bias": lambda local, _: [TensorPart("gate_up_proj_bias", local.unflatten(0, (2, -1)).t())],
    "linear_fc2.weight": lambda local, _: [TensorPart("down_proj", local.t())],
    "linear_fc2.bias": _all_of("down_proj_bias"),
}
"""An expert whose gate and up are one matrix; see :mod:`asyncrl.core.architectures.joint_experts`."""
_ROUTER, _ROUTER_BIAS, _CHOICE_BIAS = "mlp.router.weight", "mlp.router.bias", "mlp.router.expert_bias"
_SHARED = "mlp.shared_experts."
_EXPERT_NAME = re.compile(
    r"mlp\.experts\.(?:local_experts\.(?P<alone>\d+)\.(?P<layer>linear_fc[12])\.(?P<kind>weight|bias)"
    # TransformerEngine's grouped layer has a weight for each of the rank's experts.
    r"|(?P<grouped_layer>linear_fc[12])\.weight(?P<grouped>\d+))"
)
ADAPTERS = "adapters"
"""Name of the module beside a linear layer whose parameters belong to no Hugging Face tensor; see
:mod:`asyncrl.learners.megatron.lora`."""
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
        ValueError: if the parameters do not hold what a rank at this place should hold.
    """
    remaining = {held.rectangle.name: held for held in held_weights(chunks[0].architecture, spec)}
    for name, local in (part for chunk in chunks for part in _parts(chunk, spec)):
        shape, (_, start, extent), published = remaining.pop(name)
        if math.prod(extent) != local.numel():
            raise ValueError(f"{name}: rank {spec.rank} should hold {extent} of {shape}, and has {local.numel()} elements")
        yield Placed(name=name, shape=shape, start=start, extent=extent, local=local, published=published)
    if remaining:
        raise ValueError(f"rank {spec.rank} should hold {', '.join(remaining)}, and no parameter of its model does")


def _parts(model: PolicyModel, spec: RankSpec) -> Iterator[TensorPart]:
    """Yield the parts of a chunk's parameters, with their Hugging Face names."""
    first_layer, names = get_transformer_layer_offset(model.config, model.vp_stage), model.architecture.expert_names
    for parameter_name, parameter in model.weights():
        if f".{ADAPTERS}." in parameter_name:
            continue
        layer = _LAYER_NAME.fullmatch(parameter_name)
        expert = _EXPERT_NAME.fullmatch(layer[2]) if layer else None
        prefix = f"model.layers.{int(layer[1]) + first_layer}." if layer else ""
        if expert:
            place = int(expert["alone"] or expert["grouped"])
            number = spec.expert_rank * (model.config.num_moe_experts // spec.layout.expert) + place
            first = (expert["layer"] or expert["grouped_layer"]) == "linear_fc1"
            of_expert = _halves(names.gate, names.up) if first else _all_of(f"{names.down}.weight")
            if names.joint:
                of_expert = _JOINT_RULES[f"{expert['layer']}.{expert['kind']}"]
            rule = _within(f"{names.block}.experts.{number}.", of_expert)
        elif layer and layer[2] == _ROUTER:
            rule = _all_of(f"{names.block}.{names.router}.weight")
        elif layer and layer[2] == _ROUTER_BIAS:
            rule = _all_of(f"{names.block}.{names.router}.bias")
        elif layer and layer[2] == _CHOICE_BIAS:
            rule = _all_of(names.choice_bias)
        elif layer and layer[2].startswith(_SHARED):
            shared = {"linear_fc1.weight": _gate_up, "linear_fc2.weight": _all_of("down_proj.weight")}
            kind = layer[2].removeprefix(_SHARED)
            rule = _within(f"{names.shared}.", shared[kind]) if kind in shared else _all_of(names.shared_gate)
        else:
            rule = _LAYER_RULES[layer[2]] if layer else _MODEL_RULES[parameter_name]
        # In a tied model, the output layer is the last stage's copy of the embedding.
        is_copy = parameter_name == "output_layer.weight" and model.share_embeddings_and_output_weights
        for name, local in rule(parameter.detach(), model.config):
            yield TensorPart(EMBEDDING if is_copy else prefix + name, local)


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
