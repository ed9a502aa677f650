"""Gradients of weights, added to what is accumulated by the matrix product itself.

Megatron's layers can do so if Apex's compiled code for it is installed (``fused_weight_gradient_mlp_cuda``). On a GPU, torch's
own product does the same: operands of bfloat16, added up in float32. Otherwise each gradient is written in bfloat16, then read
and added.
"""

import sys

import torch
from megatron.core.tensor_parallel import layers
from torch import Tensor

from asyncrl.learners.megatron.layers.products import add_product


def added_in_products(*, engine_layers: bool) -> bool:
    """Whether Megatron's layers add gradients in their products, and have them do so.

    Args:
        engine_layers: whether layers are TransformerEngine's, which have code of their own.
    """
    if not torch.cuda.is_available() or engine_layers:
        return False
    stand_in()
    return True


def stand_in() -> None:
    """Be the package of compiled code to Megatron's layers."""
    layers.fused_weight_gradient_mlp_cuda = sys.modules[__name__]
    layers._grad_accum_fusion_available = True


def wgrad_gemm_accum_fp32(inputs: Tensor, of_outputs: Tensor, total: Tensor) -> None:
    """Add a layer's weight gradient, by the name that Megatron calls.

    Args:
        inputs, of_outputs: [t, inputs] and [t, outputs]: what the layer was given, and the gradient of what it returned.
        total: float32 [outputs, inputs], to which ``of_outputs.T @ inputs`` is added.
    """
    add_product(total, of_outputs.t(), inputs)
