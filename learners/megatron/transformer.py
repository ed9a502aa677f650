"""Megatron's configuration of a transformer, with what it does not know of the supported architectures."""

from dataclasses import dataclass

from megatron.core.transformer.transformer_config import TransformerConfig

from asyncrl.core.architectures.architecture import LatentSizes


@dataclass
class PolicyTransformerConfig(TransformerConfig):
    """Megatron's configuration.

    Attributes:
        latent: the sizes of attention if it is multi-head latent attention.
        latent_scale: the factor of its products of queries and keys.
        sinks: whether each head has a sink.
        windows: how many keys each layer's attention sees at most, 0 for all; empty if all layers see all.
    """

    latent: LatentSizes | None = None
    latent_scale: float | None = None
    sinks: bool = False
    windows: tuple[int, ...] = ()
