"""Matrix products whose result is float32, whatever their operands are."""

import torch
from torch import Tensor


def product(left: Tensor, right: Tensor) -> Tensor:
    """The matrix product. On a CPU, the operands have to be float32 too."""
    return left @ right if left.dtype is torch.float32 else torch.mm(left, right, out_dtype=torch.float32)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``left @ right`` to ``total`` in one pass over it. On a CPU, the operands have to be float32 too."""
    if left.dtype is torch.float32:
        total.addmm_(left, right)
    else:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
