"""The norm of layers, where TransformerEngine does not compute it."""

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from asyncrl.learners.megatron.layers.kernels import UsesKernels


class RMSNorm(UsesKernels, torch.nn.RMSNorm):
    """Root-mean-square norm. The gradient of its weight is summed over tensor-parallel ranks, because each sees a part
    of the sequence."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype, device=torch.cuda.current_device())
        weight: Any = self.weight
        weight.sequence_parallel = config.sequence_parallel

    def forward(self, values: Tensor) -> Tensor:
        """Norm the last dimension of ``values``."""
        assert self.eps is not None
        return self.kernels.rms_norm(values, self.weight, self.eps)
