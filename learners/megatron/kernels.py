"""Chooses what the layers of a model are computed by on a device. It is asked once for each model that is built."""

import torch
from megatron.core.transformer.transformer_config import TransformerConfig

from asyncrl.learners.megatron.layers import compiled
from asyncrl.learners.megatron.layers.attention import attention_by_torch
from asyncrl.learners.megatron.layers.kernels import Kernels


def kernels_of(device: torch.device, config: TransformerConfig) -> Kernels:
    """Return the kernels for a model of this configuration: on a GPU, what torch compiles; on a CPU, what is faster there."""
    if device.type == "cpu":
        from asyncrl.learners.megatron.cpu.kernels import kernels_of_cpu  # imports LLVM, which a host with a GPU lacks

        return kernels_of_cpu(config)
    return Kernels(compiled.rms_norm, compiled.gated_silu, compiled.rotate, attention_by_torch, compiled.heads)
