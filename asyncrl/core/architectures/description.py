"""What is to be known of an architecture that can be trained. Each has a file beside this one that says it."""

from typing import Any

import msgspec

from asyncrl.core.architectures.architecture import Architecture, ExpertNames, LatentSizes


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
        groups: into how many groups the experts are divided.
        chosen_groups: from how many of them a token's experts are.
    """

    layers: tuple[bool, ...]
    experts: int = 0
    per_token: int = 0
    channels: int = 0
    normalised: bool = True
    scale: float = 1.0
    sigmoid: bool = False
    shared: int = 0
    groups: int = 1
    chosen_groups: int = 1


GATE_LIMIT, GATE_SLOPE = 7.0, 1.702
"""What gate and up are clamped to, and the gate is multiplied by in its sigmoid, where they are clamped: vLLM knows no others."""


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
        grouped: whether a token's experts are from ``topk_group`` of ``n_group`` groups: those whose two best scores add up to
            most.
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
    grouped: bool = False
    names: ExpertNames = ExpertNames()


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """One architecture: a decoder-only transformer with rotary embedding, root-mean-square norms and gated SiLU.

    Attributes:
        name: what ``config.json`` has in ``architectures``; Hugging Face's class and vLLM's.
        model_type: what it has in ``model_type``.
        biases: whether queries, keys and values have biases, or the key that says so.
        head_norms: whether each head's queries and keys are normalised, or the key that says so.
        output_bias: whether what attention gives has a bias.
        sinks: whether attention has sinks, and every second layer, beginning with the first, sees ``sliding_window`` keys alone.
        partial_rotation: whether the rotary embedding may be that of a part of each head only.
        latent: whether attention is multi-head latent attention.
        engine_ties: whether vLLM's class takes the embedding for its output layer where ``tie_word_embeddings`` says so. One that
            does not has an output layer of its own all the same, into which no weights go.
        needed: keys that ``config.json`` must have: where one is missing, transformers takes a number that no model has.
        experts: of the mixtures among its layers; None if it has none.
    """

    name: str
    model_type: str
    biases: bool | str = False
    head_norms: bool | str = False
    output_bias: bool = False
    sinks: bool = False
    partial_rotation: bool = False
    latent: bool = False
    engine_ties: bool = True
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
            groups=(config.n_group or 1) if keys.grouped else 1,
            chosen_groups=(config.topk_group or 1) if keys.grouped else 1,
        )

    def architecture(self, config: Any) -> Architecture:
        """Return the model's tensors; ``config`` as in :meth:`mixture`."""
        mixture = self.mixture(config)
        heads: int = config.num_attention_heads
        latent = _latent_sizes(config) if self.latent else None
        head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
        return Architecture(
            hidden_size=config.hidden_size,
            heads=heads,
            key_value_heads=config.num_key_value_heads or heads,
            head_size=head_size if latent is None else latent.rotated,
            intermediate_size=config.intermediate_size,
            vocabulary=config.vocab_size,
            tied=config.tie_word_embeddings,
            biases=_says(config, self.biases),
            head_norms=_says(config, self.head_norms),
            output_bias=self.output_bias,
            sinks=self.sinks,
            with_experts=mixture.layers,
            experts=mixture.experts,
            expert_size=mixture.channels,
            expert_names=ExpertNames() if self.experts is None else self.experts.names,
            shared_size=mixture.shared,
            latent=latent,
        )


def _latent_sizes(config: Any) -> LatentSizes:
    return LatentSizes(
        query_rank=config.q_lora_rank or 0,
        key_value_rank=config.kv_lora_rank,
        plain=config.qk_nope_head_dim,
        rotated=config.qk_rope_head_dim,
        value=config.v_head_dim,
    )


def _says(config: Any, told: bool | str) -> bool:
    return bool(getattr(config, told)) if isinstance(told, str) else told
