"""What a GPU does with a tile of logits, in one pass over it instead of five: Triton kernels beside
:mod:`.log_probabilities`, which has the same arithmetic in torch. Imported only where Triton is installed."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_LEAST = -1e30
"""Less than any logit, but finite, divided by the temperature too: differences to it are no NaN."""


@triton.jit  # type: ignore[untyped-decorator]
def _reduce_kernel(  # type: ignore[no-untyped-def]
    logits, targets, chosen, peaks, totals, products, entries, temperature, least, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    start_of_row = logits + row * entries
    offsets = tl.arange(0, BLOCK)
    peak = least
    total = 0.0
    product = 0.0
    for start in range(0, entries, BLOCK):
        inside = start + offsets < entries
        tile = tl.load(start_of_row + start + offsets, mask=inside, other=least) / temperature
        highest = tl.maximum(peak, tl.max(tile, 0))
        below = tl.where(inside, tile - highest, 0.0)
        exponentials = tl.where(inside, tl.exp(below), 0.0)
        scale = tl.exp(peak - highest)
        product = scale * (product + total * (peak - highest)) + tl.sum(exponentials * below, 0)
        total = scale * total + tl.sum(exponentials, 0)
        peak = highest
    tl.store(peaks + row, peak)
    tl.store(totals + row, total)
    tl.store(products + row, product)
    target = tl.load(targets + row)
    is_here = (target >= 0) & (target < entries)
    found = tl.load(start_of_row + tl.where(is_here, target, 0)) / temperature
    tl.store(chosen + row, tl.load(chosen + row) + tl.where(is_here, found, 0.0))


@triton.jit  # type: ignore[untyped-decorator]
def _gradient_kernel(  # type: ignore[no-untyped-def]
    logits, gradient, targets, normalizers, of_logp, of_entropy, entropies, entries, temperature,
    WITH_ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < entries
    tile = tl.load(logits + row * entries + columns, mask=inside, other=0.0)
    logp = tile / temperature - tl.load(normalizers + row)
    slope = tl.load(of_logp + row)
    values = -slope
    if WITH_ENTROPY:
        of_row = tl.load(of_entropy + row)
        values = -of_row * logp - (slope + of_row * tl.load(entropies + row))
    values = tl.exp(logp) * values
    values += tl.where(columns == tl.load(targets + row), slope, 0.0)
    tl.store(gradient + row * entries + columns, values.to(gradient.dtype.element_ty), mask=inside)


def reduce_tile(
    logits: Tensor, targets: Tensor, temperature: float, chosen: Tensor, peaks: Tensor, totals: Tensor, products: Tensor
) -> None:
    """Reduce each row of a tile.

    Args:
        logits: float32 [n, entries], contiguous, not yet divided by the temperature.
        targets: int64 [n], the column of each row's target; outside of the tile if it is in another one.
        chosen: float32 [n], to which the target's value is added.
        peaks, totals, products: float32 [n], where the largest value is written and, relative to it, the sum of exponentials
            and the sum of exponentials times values.
    """
    rows, entries = logits.shape
    _reduce_kernel[(rows,)](logits, targets, chosen, peaks, totals, products, entries, temperature, _LEAST, BLOCK=_BLOCK)


def gradient_of_tile(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    normalizers: Tensor,
    of_logp: Tensor,
    of_entropy: Tensor | None,
    entropies: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """The loss's gradient by the values of a tile, [n, entries] in ``dtype``.

    Args:
        logits, targets: as for :func:`reduce_tile`.
        normalizers, entropies: float32 [n], of the rows' whole distributions.
        of_logp, of_entropy: float32 [n], the loss's gradients by log-probabilities and entropies; the second may be None.
    """
    rows, entries = logits.shape
    gradient = torch.empty_like(logits, dtype=dtype)
    given = of_logp if of_entropy is None else of_entropy
    _gradient_kernel[(rows, triton.cdiv(entries, _BLOCK))](
        logits, gradient, targets, normalizers, of_logp.contiguous(), given.contiguous(), entropies, entries, temperature,
        WITH_ENTROPY=of_entropy is not None, BLOCK=_BLOCK,
    )  # fmt: skip
    return gradient
