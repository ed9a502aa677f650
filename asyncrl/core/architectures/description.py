"""What is to be known of an architecture that can be trained. Each has a file beside this one that says it."""

from typing import Any

import msgspec

from asyncrl.core.architectures.architecture import Architecture, ExpertNames


class Mixture(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a model's mixture of experts, from its ``config.json``.

    Attributes:
        layers: for each layer of the model, whether it is one; none is in a model without experts.
        experts: experts of such a layer.
        per_token: experts that a token goes to.
        channels: feed-forward channels of an expert.
        normalised: whether the weights of a token's own experts add up to 1, before they are scaled.
        scale: factor of those weights.
        sigmoid: whether a router's scores are sigmoids of its logits, and not their softmax.
        shared: feed-forward channels of the expert that every token goes to; 0 if there is none.
    """

    layers: tuple[bool, ...]
    experts: int = 0
    per_token: int = 0
    channels: int = 0
    normalised: bool = True
    scale: float = 1.0
    sigmoid: bool = False
    shared: int = 0


class ExpertsDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Where a ``config.json`` has the sizes of a mixture of experts, and what its tensors are called.

    Attributes:
        count, channels: keys of the experts of a layer, of which releases of transformers write one or the other, and of an
            expert's feed-forward channels.
        normalised: whether the weights of a token's own experts add up to 1; None if the key ``norm_topk_prob`` says so.
        some_layers: whether the keys ``decoder_sparse_step`` and ``mlp_only_layers`` leave layers without experts.
        first_dense: key of the number of layers at the beginning that have no experts; empty if there is none.
        shared: key of the feed-forward channels of the expert that every token goes to; empty if there is none.
        shared_experts: key of how many experts of the others' size it stands for, if its channels have no key.
        sigmoid: whether scores are sigmoids, and their weights scaled by ``routed_scaling_factor``.
        names: what the tensors are called.
    """

    count: tuple[str, ...]
    channels: str
    normalised: bool | None = None
    some_layers: bool = False
    first_dense: str = ""
    shared: str = ""
    shared_experts: str = ""
    sigmoid: bool = False
    names: ExpertNames = ExpertNames()


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """One architecture: a decoder-only transformer with rotary embedding, root-mean-square norms and gated SiLU.

    Attributes:
        name: what ``config.json`` has in ``architectures``; Hugging Face's class and vLLM's.
        model_type: what it has in ``model_type``.
        biases: whether queries, keys and values have biases, or the key that says so.
        head_norms: whether each head's queries and keys are normalised, or the key that says so.
        partial_rotation: whether the rotary embedding may be that of a part of each head only.
        needed: keys that ``config.json`` must have: where one is missing, transformers takes a number that no model has.
        experts: of the mixtures among its layers; None if it has none.
    """

    name: str
    model_type: str
    biases: bool | str = False
    head_norms: bool | str = False
    partial_rotation: bool = False
    needed: tuple[str, ...] = ()
    experts: ExpertsDescription | None = None

    def mixture(self, config: Any) -> Mixture:
        """Return the sizes of the model's mixture of experts.

        Args:
            config: has the keys of a ``config.json`` as attributes.
        """
        layers: int = config.num_hidden_layers
        keys = self.experts
        if keys is None:
            return Mixture(layers=(False,) * layers)
        experts = next((count for key in keys.count if (count := getattr(config, key, 0))), 0)
        step, dense = (config.decoder_sparse_step, config.mlp_only_layers or ()) if keys.some_layers else (1, ())
        if keys.first_dense:
            dense = range(getattr(config, keys.first_dense))
        channels = getattr(config, keys.channels)
        shared = getattr(config, keys.shared) if keys.shared else 0
        if keys.shared_experts:
            shared = channels * (getattr(config, keys.shared_experts) or 0)
        return Mixture(
            layers=tuple(experts > 0 and layer not in dense and (layer + 1) % step == 0 for layer in range(layers)),
            experts=experts,
            per_token=config.num_experts_per_tok or 0,
            channels=channels,
            normalised=config.norm_topk_prob if keys.normalised is None else keys.normalised,
            scale=config.routed_scaling_factor if keys.sigmoid else 1.0,
            sigmoid=keys.sigmoid,
            shared=shared,
        )

    def architecture(self, config: Any) -> Architecture:
        """Return the model's tensors; ``config`` as in :meth:`mixture`."""
        mixture = self.mixture(config)
        heads: int = config.num_attention_heads
        return Architecture(
            hidden_size=config.hidden_size,
            heads=heads,
            key_value_heads=config.num_key_value_heads or heads,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
            intermediate_size=config.intermediate_size,
            vocabulary=config.vocab_size,
            tied=config.tie_word_embeddings,
            biases=_says(config, self.biases),
            head_norms=_says(config, self.head_norms),
            with_experts=mixture.layers,
            experts=mixture.experts,
            expert_size=mixture.channels,
            expert_names=ExpertNames() if self.experts is None else self.experts.names,
            shared_size=mixture.shared,
        )


def _says(config: Any, told: bool | str) -> bool:
    return bool(getattr(config, told)) if isinstance(told, str) else told
