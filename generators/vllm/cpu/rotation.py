"""Lets an engine on a CPU rotate queries whose heads have a dimension of their own, as latent attention has them.

vLLM's kernel for the CPU takes the last two dimensions for tokens and channels. Of queries of the shape [tokens, heads, channels]
it would rotate the first heads alone, as many as there are tokens, each by the angle of another token.
"""

from torch import Tensor
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

_FLAT = 2
"""How many dimensions queries have that the kernel can rotate: tokens, and the channels of all heads."""


def rotate_heads_apart() -> None:
    """Have vLLM's operations in PyTorch rotate what its kernel cannot. Safe to call again."""
    RotaryEmbedding.forward_cpu = _rotate


_kernel = RotaryEmbedding.forward_cpu


def _rotate(self: RotaryEmbedding, positions: Tensor, query: Tensor, key: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    rotate = _kernel if query.dim() == _FLAT else type(self).forward_native
    rotated: tuple[Tensor, Tensor | None] = rotate(self, positions, query, key)
    return rotated
