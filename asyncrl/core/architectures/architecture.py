"""The tensors of a model that the learner can train, by their Hugging Face names, and how tensor-parallel ranks divide them.

Learner and engines hold the same tensors, each in its own layout. What always holds: every tensor of the model's Hugging Face
folder is named exactly once, except a tied output layer, which is the embedding.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
"""The projections of a layer without experts, beside those of attention."""

_DIVIDED = {
    **dict.fromkeys(("embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "w1", "w3"), 0),
    **dict.fromkeys(("q_b_proj", "kv_b_proj"), 0),
    **dict.fromkeys(("o_proj", "down_proj", "w2"), 1),
}
_DIVIDED_ALONE = {"sinks": 0, "gate_up_proj": 1, "gate_up_proj_bias": 0, "down_proj": 0}
"""Tensors that have a name of their own, and not that of a module."""


def divided_dimension(name: str) -> int | None:
    """The dimension of a tensor that tensor-parallel ranks divide; None if each rank has the whole tensor.

    Args:
        name: Hugging Face name, of the model or within a layer.
    """
    *_, module, kind = name.split(".")
    if kind not in ("weight", "bias"):
        return _DIVIDED_ALONE.get(kind)
    divided = _DIVIDED.get(module)
    return None if kind == "bias" and divided == 1 else divided


class ModelTensor(NamedTuple):
    """One tensor.

    Attributes:
        name: its Hugging Face name.
        shape: the shape of the whole tensor.
        layer: the number of its layer; None outside the layers.
        expert: the number of its expert; None outside the experts.
    """

    name: str
    shape: tuple[int, ...]
    layer: int | None = None
    expert: int | None = None


class ExpertNames(msgspec.Struct, frozen=True, kw_only=True):
    """What the tensors of a mixture of experts are called within a layer.

    Attributes:
        block: where its router is (``BLOCK.ROUTER``), and its experts (``BLOCK.experts.NUMBER.PROJECTION``).
        router: what its router is called.
        gate, up, down: an expert's projections.
        shared: where the projections of the expert are that every token goes to; they are called as in a layer without experts.
        shared_gate: the gate of that expert; empty if it has none.
        choice_bias: what is added to the router's scores for choosing experts, and not for weighing them; empty if nothing is.
        joint: whether router and experts have biases, an expert's gate and up are one matrix, column by column, as
            :mod:`.joint_experts` says, and are clamped: they give ``gate * sigmoid(1.702 * gate) * (up + 1)``.
    """

    block: str = "mlp"
    router: str = "gate"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "mlp.shared_expert"
    shared_gate: str = "mlp.shared_expert_gate.weight"
    choice_bias: str = ""
    joint: bool = False


class LatentSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434): keys and values of all heads are made of one
    small vector a token, and queries may be of another.

    Attributes:
        query_rank: channels of the vector that queries are made of; 0 if they are made of the hidden state.
        key_value_rank: channels of the vector that keys and values are made of.
        plain, rotated, value: channels of a head's queries and keys that are not rotated, of those that are, and of its values.
            The rotated channels of a key are the same in all heads.
    """

    query_rank: int
    key_value_rank: int
    plain: int
    rotated: int
    value: int

    @property
    def query(self) -> int:
        """Channels of a head's queries, and of its keys."""
        return self.plain + self.rotated


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a decoder-only transformer, dense or with experts.

    Attributes:
        hidden_size: channels between layers.
        heads, key_value_heads, head_size: of attention; the channels that are rotated if it is latent.
        intermediate_size: feed-forward channels of a layer without experts.
        vocabulary: entries of the embedding.
        tied: whether the output layer is the embedding.
        biases: whether queries, keys and values have biases.
        output_bias: whether what attention gives has a bias.
        sinks: whether each head has a sink: a score that takes a part of attention, and has no value.
        head_norms: whether each head's queries and keys are normalised.
        with_experts: for each layer, whether it is a mixture of experts.
        experts: experts of such a layer.
        expert_size: feed-forward channels of an expert.
        expert_names: what the tensors of router and experts are called.
        shared_size: feed-forward channels of the expert that every token of such a layer goes to; 0 if there is none.
        latent: the sizes of attention if it is multi-head latent attention.
    """

    hidden_size: int
    heads: int
    key_value_heads: int
    head_size: int
    intermediate_size: int
    vocabulary: int
    tied: bool
    biases: bool
    head_norms: bool
    with_experts: tuple[bool, ...]
    output_bias: bool = False
    sinks: bool = False
    experts: int = 0
    expert_size: int = 0
    expert_names: ExpertNames = ExpertNames()
    shared_size: int = 0
    latent: LatentSizes | None = None

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.with_experts)

    @property
    def attention_projections(self) -> tuple[str, ...]:
        """What the matrices of a layer's attention are called."""
        return tuple(name.split(".")[1] for name, shape in self._of_attention().items() if shape[1:])

    def tensors(self) -> Iterator[ModelTensor]:
        """Yield every tensor: the embedding, the layers in their order, the last norm, the output layer unless it is tied."""
        yield ModelTensor(EMBEDDING, (self.vocabulary, self.hidden_size))
        for layer in range(self.layers):
            yield from self._layer(layer)
        yield ModelTensor("model.norm.weight", (self.hidden_size,))
        if not self.tied:
            yield ModelTensor(OUTPUT, (self.vocabulary, self.hidden_size))

    def _layer(self, layer: int) -> Iterator[ModelTensor]:
        prefix, hidden = f"model.layers.{layer}.", self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
        shapes |= self._of_attention()
        shapes["post_attention_layernorm.weight"] = (hidden,)
        names = ExpertNames()
        if not self.with_experts[layer]:
            shapes |= _feed_forward("mlp.", names, hidden, self.intermediate_size)
        else:
            names = self.expert_names
            shapes[f"{names.block}.{names.router}.weight"] = (self.experts, hidden)
            if names.joint:
                shapes[f"{names.block}.{names.router}.bias"] = (self.experts,)
            if names.choice_bias:
                shapes[names.choice_bias] = (self.experts,)
            if self.shared_size:
                shapes |= _feed_forward(f"{names.shared}.", ExpertNames(), hidden, self.shared_size)
            if self.shared_size and names.shared_gate:
                shapes[names.shared_gate] = (1, hidden)
        for name, shape in shapes.items():
            yield ModelTensor(prefix + name, shape, layer)
        made = _joint if names.joint else _feed_forward
        for expert in range(self.experts if self.with_experts[layer] else 0):
            for name, shape in made(f"{names.block}.experts.{expert}.", names, hidden, self.expert_size).items():
                yield ModelTensor(prefix + name, shape, layer, expert)

    def _of_attention(self) -> dict[str, tuple[int, ...]]:
        return self._attention() if self.latent is None else self._latent_attention(self.latent)

    def _attention(self) -> dict[str, tuple[int, ...]]:
        hidden = self.hidden_size
        queries, keys = self.heads * self.head_size, self.key_value_heads * self.head_size
        shapes: dict[str, tuple[int, ...]] = {}
        for letter, rows in (("q", queries), ("k", keys), ("v", keys)):
            shapes[f"self_attn.{letter}_proj.weight"] = (rows, hidden)
            if self.biases:
                shapes[f"self_attn.{letter}_proj.bias"] = (rows,)
        if self.head_norms:
            shapes |= dict.fromkeys(("self_attn.q_norm.weight", "self_attn.k_norm.weight"), (self.head_size,))
        shapes["self_attn.o_proj.weight"] = (hidden, queries)
        if self.output_bias:
            shapes["self_attn.o_proj.bias"] = (hidden,)
        if self.sinks:
            shapes["self_attn.sinks"] = (self.heads,)
        return shapes

    def _latent_attention(self, sizes: LatentSizes) -> dict[str, tuple[int, ...]]:
        hidden, queries, rank = self.hidden_size, self.heads * sizes.query, sizes.key_value_rank
        shapes: dict[str, tuple[int, ...]] = {"q_proj.weight": (queries, hidden)}
        if sizes.query_rank:
            shapes = {"q_a_proj.weight": (sizes.query_rank, hidden), "q_a_layernorm.weight": (sizes.query_rank,)}
            shapes["q_b_proj.weight"] = (queries, sizes.query_rank)
        shapes |= {
            "kv_a_proj_with_mqa.weight": (rank + sizes.rotated, hidden),
            "kv_a_layernorm.weight": (rank,),
            "kv_b_proj.weight": (self.heads * (sizes.plain + sizes.value), rank),
            "o_proj.weight": (hidden, self.heads * sizes.value),
        }
        return {f"self_attn.{name}": shape for name, shape in shapes.items()}


def _feed_forward(prefix: str, names: ExpertNames, hidden: int, channels: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}{names.gate}.weight": (channels, hidden),
        f"{prefix}{names.up}.weight": (channels, hidden),
        f"{prefix}{names.down}.weight": (hidden, channels),
    }


def _joint(prefix: str, names: ExpertNames, hidden: int, channels: int) -> dict[str, tuple[int, ...]]:
    """The tensors of an expert with biases, whose matrices are transposed, and whose gate and up are one."""
    return {
        f"{prefix}gate_up_proj": (hidden, 2 * channels),
        f"{prefix}gate_up_proj_bias": (2 * channels,),
        f"{prefix}{names.down}": (channels, hidden),
        f"{prefix}{names.down}_bias": (hidden,),
    }
