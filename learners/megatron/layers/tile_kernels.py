"""What a GPU does with a tile of logits, in one pass over it instead of five: Triton kernels beside
:mod:`.log_probabilities`, which has the same arithmetic in torch. Imported only where Triton is installed."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048
"""How many logits a program turns into a gradient."""
_LEAST = -1e30
"""Less than any logit, but finite, divided by the temperature too: differences to it are no NaN."""
_ROW_WARPS = 8
"""Warps of a program that holds a row of a tile, of up to 8,192 logits, in its registers."""


@triton.jit  # type: ignore[untyped-decorator]
def _reduce_kernel(  # type: ignore[no-untyped-def]
    logits, targets, chosen, peaks, totals, products, kept, entries, temperature, least,
    KEEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start_of_row = row * entries
    offsets = tl.arange(0, BLOCK)
    inside = offsets < entries
    tile = tl.load(logits + start_of_row + offsets, mask=inside, other=least) / temperature
    peak = tl.max(tile, 0)
    below = tl.where(inside, tile - peak, 0.0)
    exponentials = tl.where(inside, tl.exp(below), 0.0)
    tl.store(peaks + row, peak)
    tl.store(totals + row, tl.sum(exponentials, 0))
    tl.store(products + row, tl.sum(exponentials * below, 0))
    if KEEP:
        tl.store(kept + start_of_row + offsets, exponentials.to(kept.dtype.element_ty), mask=inside)
    target = tl.load(targets + row)
    is_here = (target >= 0) & (target < entries)
    found = tl.load(logits + start_of_row + tl.where(is_here, target, 0)) / temperature
    tl.store(chosen + row, tl.load(chosen + row) + tl.where(is_here, found, 0.0))


@triton.jit  # type: ignore[untyped-decorator]
def _gradient_kernel(  # type: ignore[no-untyped-def]
    logits, gradient, targets, normalizers, slopes, entropy_slopes, entropies, entries, temperature,
    WITH_ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < entries
    tile = tl.load(logits + row * entries + columns, mask=inside, other=0.0)
    logp = tile / temperature - tl.load(normalizers + row)
    slope = tl.load(slopes + row)
    values = -slope
    if WITH_ENTROPY:
        of_row = tl.load(entropy_slopes + row)
        values = -of_row * logp - (slope + of_row * tl.load(entropies + row))
    values = tl.exp(logp) * values
    values += tl.where(columns == tl.load(targets + row), slope, 0.0)
    tl.store(gradient + row * entries + columns, values.to(gradient.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _kept_gradient_kernel(  # type: ignore[no-untyped-def]
    kept, gradient, targets, peaks, normalizers, slopes, logps, entries, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < entries
    exponentials = tl.load(kept + row * entries + columns, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(slopes + row)
    values = exponentials * (-slope * tl.exp(tl.load(peaks + row) - tl.load(normalizers + row)))
    # The target's share is what is left of 1, where a rounded probability near 1 would leave its rounding.
    values = tl.where(columns == tl.load(targets + row), slope * (1.0 - tl.exp(tl.load(logps + row))), values)
    tl.store(gradient + row * entries + columns, values.to(gradient.dtype.element_ty), mask=inside)


def reduce_tile(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    chosen: Tensor,
    peaks: Tensor,
    totals: Tensor,
    products: Tensor,
    kept: Tensor | None,
) -> None:
    """Reduce each row of a tile.

    Args:
        logits: float32 [n, entries], contiguous, not yet divided by the temperature.
        targets: int64 [n], the column of each row's target; outside of the tile if it is in another one.
        chosen: float32 [n], to which the target's value is added.
        peaks, totals, products: float32 [n], where the largest value is written and, relative to it, the sum of exponentials
            and the sum of exponentials times values.
        kept: [n, entries], where the exponentials are written, relative to the largest value; None if they are not kept.
    """
    rows, entries = logits.shape
    _reduce_kernel[(rows,)](
        logits, targets, chosen, peaks, totals, products, logits if kept is None else kept, entries, temperature, _LEAST,
        KEEP=kept is not None, BLOCK=triton.next_power_of_2(entries), num_warps=_ROW_WARPS,
    )  # fmt: skip


def gradient_of_tile(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    normalizers: Tensor,
    slopes: Tensor,
    entropy_slopes: Tensor | None,
    entropies: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """The loss's gradient by the logits of a tile, [n, entries] in ``dtype``.

    Args:
        logits, targets: as for :func:`reduce_tile`.
        normalizers, entropies: float32 [n], of the rows' whole distributions.
        slopes, entropy_slopes: float32 [n], the loss's gradients by log-probabilities and entropies, over the temperature; the
            second may be None.
    """
    rows, entries = logits.shape
    gradient = torch.empty_like(logits, dtype=dtype)
    given = slopes if entropy_slopes is None else entropy_slopes
    _gradient_kernel[(rows, triton.cdiv(entries, _BLOCK))](
        logits, gradient, targets, normalizers, slopes, given, entropies, entries, temperature,
        WITH_ENTROPY=entropy_slopes is not None, BLOCK=_BLOCK,
    )  # fmt: skip
    return gradient


def gradient_of_kept(kept: Tensor, targets: Tensor, peaks: Tensor, normalizers: Tensor, slopes: Tensor, logps: Tensor) -> Tensor:
    """As :func:`gradient_of_tile`, without the entropy's part, from exponentials that :func:`reduce_tile` has kept, in their data
    type.

    Args:
        kept: [n, entries], contiguous, relative to ``peaks``, float32 [n].
        logps: float32 [n], the targets' log-probabilities.
    """
    rows, entries = kept.shape
    gradient = torch.empty_like(kept)
    _kept_gradient_kernel[(rows, triton.cdiv(entries, _BLOCK))](
        kept, gradient, targets, peaks, normalizers, slopes, logps, entries, BLOCK=_BLOCK
    )
    return gradient
