"""A mixture of experts: the router, the experts of a layer that this rank holds, and the expert that every token goes to."""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.shared_experts import SharedExpertMLP
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from asyncrl.learners.megatron.layers.elementwise import clamped_glu
from asyncrl.learners.megatron.layers.kernels import UsesKernels


class Router(TopKRouter):
    """Megatron's router, with logits computed in float32 by plain torch."""

    def gating(self, tokens: Tensor) -> Tensor:
        """The router's logits, from [t, 1, hidden] to float32 [t, 1, experts]. Megatron's own method fails without
        TransformerEngine."""
        return F.linear(tokens.float(), self.weight.float(), None if self.bias is None else self.bias.float())


class Experts(UsesKernels, SequentialMLP):
    """Megatron's experts, computed one after another, with gated SiLU; those that have biases with a clamped gate."""

    def __init__(self, count: int, config: TransformerConfig, **options: Any) -> None:
        submodules = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
        super().__init__(count, config, submodules, **options)
        for bias in (expert.linear_fc2.bias for expert in self.local_experts if config.add_bias_linear):
            # No rank divides experts with biases: the ranks of a tensor-parallel group have different ones, or share them as
            # data-parallel ranks do. Megatron would sum their gradients, and leave them out of the norm on all but the first.
            bias.sequence_parallel = False
            set_tensor_model_parallel_attributes(bias, is_parallel=True, dim=0, stride=1)

    def forward(self, tokens: Tensor, counts: Tensor, weights: Tensor) -> tuple[Tensor, None]:
        """Compute each expert's output for its tokens, times the weight that the router gave it.

        Args:
            tokens: [t, hidden], sorted by expert.
            counts: int64 [experts], how many tokens each expert has.
            weights: float32 [t], the router's weights.

        Returns:
            [t, hidden], and None in place of a bias.
        """
        sizes = counts.tolist()
        outputs = []
        for expert, mine, weight in zip(self.local_experts, tokens.split(sizes), weights.split(sizes), strict=True):
            gate_up, bias = expert.linear_fc1(mine)
            gated = self.kernels.gated_silu(gate_up) if bias is None else clamped_glu(gate_up + bias)
            output, bias = expert.linear_fc2((gated * weight.unsqueeze(1)).to(tokens.dtype))
            outputs.append(output if bias is None else output + (weight.unsqueeze(1) * bias).to(tokens.dtype))
        return torch.cat(outputs), None


class SharedExpert(UsesKernels, SharedExpertMLP):
    """The expert that every token goes to: Megatron's, with gated SiLU and no biases."""

    def __init__(self, config: TransformerConfig, **options: Any) -> None:
        super().__init__(config, MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear), **options)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Compute the expert's output, times its gate if it has one, from [t, 1, hidden] to the same shape."""
        gate_up, _ = self.linear_fc1(hidden_states)
        output: Tensor = self.linear_fc2(self.kernels.gated_silu(gate_up))[0]
        return output if self.gate_weight is None else output * F.linear(hidden_states, self.gate_weight).sigmoid()
