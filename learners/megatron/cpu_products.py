"""Has torch multiply float32 matrices with oneDNN on processors that are not Intel's.

By itself, torch multiplies them with MKL, which uses AVX-512 on Intel's processors only. On others oneDNN, which torch brings
along and takes for bfloat16, multiplies up to twice as fast with AVX-512, and no slower without.

What always holds: products keep float32's precision.
"""

import warnings
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

_PROCESSOR = Path("/proc/cpuinfo")


@cache
def multiply_with_onednn() -> torch.library.Library | None:
    """Have this process multiply so, if torch has MKL and the processor is not Intel's.

    Returns:
        What replaces torch's choice for as long as it lives; None where that stands.
    """
    if not torch.backends.mkl.is_available() or "GenuineIntel" in _PROCESSOR.read_text(encoding="utf-8", errors="replace"):
        return None
    operators = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # torch warns of what is replaced
        operators.impl("mm", product, "CPU", allow_override=True)
    return operators


def product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply matrices on a CPU, [m, k] by [k, n], to [m, n] of the same data type."""
    if left.dtype is torch.float32 is right.dtype and left.numel() and right.numel():
        multiplied: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.t(), None, "none", [], "")
        return multiplied
    return torch.mm(left, right, out=left.new_empty(left.size(0), right.size(1)))
