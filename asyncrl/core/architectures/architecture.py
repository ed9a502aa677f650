"""The tensors of a model that the learner can train, by their Hugging Face names, and how tensor-parallel ranks divide them.

Learner and engines hold the same tensors, each in its own layout. What always holds: every tensor of the model's Hugging Face
folder is named exactly once, except a tied output layer, which is the embedding.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"

_DIVIDED = {
    **dict.fromkeys(("embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "w1", "w3"), 0),
    **dict.fromkeys(("o_proj", "down_proj", "w2"), 1),
}


def divided_dimension(name: str) -> int | None:
    """The dimension of a tensor that tensor-parallel ranks divide; None if each rank has the whole tensor.

    Args:
        name: Hugging Face name, of the model or within a layer.
    """
    return _DIVIDED.get(name.split(".")[-2])


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
        block: where its router is (``BLOCK.gate``), and its experts (``BLOCK.experts.NUMBER.PROJECTION``).
        gate, up, down: an expert's projections.
        shared: where the projections of the expert are that every token goes to; they are called as in a layer without experts.
        shared_gate: the gate of that expert; empty if it has none.
        choice_bias: what is added to the router's scores for choosing experts, and not for weighing them; empty if nothing is.
    """

    block: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "mlp.shared_expert"
    shared_gate: str = "mlp.shared_expert_gate.weight"
    choice_bias: str = ""


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a decoder-only transformer, dense or with experts.

    Attributes:
        hidden_size: channels between layers.
        heads, key_value_heads, head_size: of attention.
        intermediate_size: feed-forward channels of a layer without experts.
        vocabulary: entries of the embedding.
        tied: whether the output layer is the embedding.
        biases: whether queries, keys and values have biases.
        head_norms: whether each head's queries and keys are normalised.
        with_experts: for each layer, whether it is a mixture of experts.
        experts: experts of such a layer.
        expert_size: feed-forward channels of an expert.
        expert_names: what the tensors of router and experts are called.
        shared_size: feed-forward channels of the expert that every token of such a layer goes to; 0 if there is none.
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
    experts: int = 0
    expert_size: int = 0
    expert_names: ExpertNames = ExpertNames()
    shared_size: int = 0

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.with_experts)

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
        queries, keys = self.heads * self.head_size, self.key_value_heads * self.head_size
        shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
        for letter, rows in (("q", queries), ("k", keys), ("v", keys)):
            shapes[f"self_attn.{letter}_proj.weight"] = (rows, hidden)
            if self.biases:
                shapes[f"self_attn.{letter}_proj.bias"] = (rows,)
        if self.head_norms:
            shapes |= dict.fromkeys(("self_attn.q_norm.weight", "self_attn.k_norm.weight"), (self.head_size,))
        shapes |= {"self_attn.o_proj.weight": (hidden, queries), "post_attention_layernorm.weight": (hidden,)}
        names = ExpertNames()
        if not self.with_experts[layer]:
            shapes |= _feed_forward("mlp.", names, hidden, self.intermediate_size)
        else:
            names = self.expert_names
            shapes[f"{names.block}.gate.weight"] = (self.experts, hidden)
            if names.choice_bias:
                shapes[names.choice_bias] = (self.experts,)
            if self.shared_size:
                shapes |= _feed_forward(f"{names.shared}.", ExpertNames(), hidden, self.shared_size)
            if self.shared_size and names.shared_gate:
                shapes[names.shared_gate] = (1, hidden)
        for name, shape in shapes.items():
            yield ModelTensor(prefix + name, shape, layer)
        for expert in range(self.experts if self.with_experts[layer] else 0):
            for name, shape in _feed_forward(f"{names.block}.experts.{expert}.", names, hidden, self.expert_size).items():
                yield ModelTensor(prefix + name, shape, layer, expert)


def _feed_forward(prefix: str, names: ExpertNames, hidden: int, channels: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}{names.gate}.weight": (channels, hidden),
        f"{prefix}{names.up}.weight": (channels, hidden),
        f"{prefix}{names.down}.weight": (hidden, channels),
    }
