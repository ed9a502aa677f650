"""Log-probability and entropy directly from hidden states: output layer and softmax, one tile at a time.

What always holds: only a few tiles of logits exist at once, in the forward and in the backward pass, however many
tokens there are and however large the vocabulary is. Between the passes, four numbers per token are kept, and the
backward pass computes the logits again. Logits are float32, whatever the data type of the weights.

On a GPU, the exponentials of the first tiles are kept too, in the data type of the weights and within :data:`KEPT_BYTES`, so that
the backward pass need not compute these tiles again. It does so all the same where the entropy has a gradient, which is made of
logarithms that such exponentials are too coarse for.
"""

import importlib
import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.learners.megatron.layers.products import add_product, product


class Tile(NamedTuple):
    """How many tokens, and how many entries of the vocabulary, are computed at once."""

    tokens: int
    entries: int


_CPU_TILE = Tile(tokens=1024, entries=512)
"""Fits a core's second-level cache, so that all passes over it, except the matrix products, cost almost nothing."""
_GPU_TILE = Tile(tokens=8192, entries=8192)
"""256 MiB of logits: enough work for a GPU to hide the time it takes to launch it. A kernel holds a row of a tile at once."""
KEPT_BYTES = 896 << 20
"""Memory for exponentials that are kept between the passes: seven tiles of bfloat16. It is less than what the gradient of a large
output layer would take, were it not added where gradients are accumulated."""


class Predictions(NamedTuple):
    """Log-probability of each sampled token, and entropy of the distribution that it was sampled from; float32 [n], nats."""

    logp: Tensor
    entropy: Tensor


def token_log_probabilities(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    group: dist.ProcessGroup,
    tile: Tile | None = None,
    kept_bytes: int = KEPT_BYTES,
) -> Predictions:
    """Compute the log-probability of each target under ``softmax(hidden @ weight.T / temperature)``, and that
    distribution's entropy.

    Args:
        hidden: [n, hidden], the same on all ranks of ``group``. Its gradient covers only this rank's part of the
            vocabulary; the whole gradient is the sum over the ranks. The backward of
            ``copy_to_tensor_model_parallel_region`` takes this sum, and so does that of the gather that undoes sequence
            parallelism.
        weight: [vocabulary / group size, hidden], part number ``group.rank()`` of the output layer. If Megatron accumulates its
            gradient in ``weight.main_grad``, the products are added there, in float32, and autograd gets no gradient of it.
        targets: int64 [n], token ids.
        temperature: temperature at which the targets were sampled.
        group: the ranks that divide the vocabulary. All of them make this call together.
        tile: what is computed at once; None for what suits the device.
        kept_bytes: memory for exponentials that are kept between the passes on a GPU.

    Returns:
        Both with a gradient. The gradient of the entropy costs time only if it is needed.
    """
    tile = tile or (_GPU_TILE if hidden.is_cuda else _CPU_TILE)
    trained = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    room = kept_bytes if trained else 0
    return Predictions(*_TokenLogProbabilities.apply(hidden, weight, targets, temperature, group, tile, room))


class _TokenLogProbabilities(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        group: dist.ProcessGroup,
        tile: Tile,
        room: int,
    ) -> tuple[Tensor, Tensor]:
        tokens, entries = len(hidden), len(weight)
        local = targets - group.rank() * entries
        # For each token and each tile of the vocabulary: the largest logit and, relative to it, the sum of exponentials and the
        # sum of exponentials times logits.
        tiles = -(-entries // tile.entries)
        peaks, totals, products = (hidden.new_empty(tiles, tokens, dtype=torch.float32) for _ in range(3))
        chosen = hidden.new_zeros(tokens, dtype=torch.float32)
        fused = _kernels(hidden)
        kept: list[Tensor] = []
        for number, columns in enumerate(_ranges(entries, tile.entries)):
            of_entries = _operand(weight[columns]).t()
            for rows in _ranges(tokens, tile.tokens):
                logits = product(_operand(hidden[rows]), of_entries)
                if fused is not None:
                    room -= logits.numel() * of_entries.element_size()
                    kept += [torch.empty_like(logits, dtype=of_entries.dtype)] if room >= 0 else []
                    into = (peaks[number, rows], totals[number, rows], products[number, rows], kept[-1] if room >= 0 else None)
                    fused.reduce_tile(logits, local[rows] - columns.start, temperature, chosen[rows], *into)
                    continue
                logits = _cooled(logits, temperature)
                chosen[rows] += _at_targets(logits, local[rows] - columns.start)
                peak = torch.amax(logits, -1, out=peaks[number, rows])
                logits -= peak.unsqueeze(1)
                exponentials = logits.exp()
                torch.sum(exponentials, -1, out=totals[number, rows])
                torch.linalg.vecdot(exponentials, logits, out=products[number, rows])
        peak = peaks.amax(0)
        if group.size() > 1:
            dist.all_reduce(peak, dist.ReduceOp.MAX, group)
        below = peaks - peak
        scale = below.exp()
        sums = torch.stack([chosen, (scale * totals).sum(0), (scale * (products + totals * below)).sum(0)])
        if group.size() > 1:
            dist.all_reduce(sums, group=group)
        chosen, total, of_logits = sums
        log_total = total.log()
        entropy = log_total - of_logits / total
        log_normalizer = peak + log_total
        logp = chosen - log_normalizer
        of_kept = [peaks, *kept] if kept else []
        ctx.save_for_backward(hidden, weight, local, log_normalizer, entropy, logp, *of_kept)
        ctx.temperature, ctx.tile = temperature, tile
        # A tensor of Megatron's that changes between the passes, so it is not saved as one that may not.
        ctx.accumulated = getattr(weight, "main_grad", None)
        # The entropy's gradient is None if no loss needs it.
        ctx.set_materialize_grads(False)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, of_logp: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, local, log_normalizer, entropy, logp, *of_kept = ctx.saved_tensors
        peaks, *kept = of_kept or [None]
        if of_logp is None and of_entropy is None:
            return (None,) * 7
        # The gradients by the products: logits are products over the temperature.
        slopes = (torch.zeros_like(entropy) if of_logp is None else of_logp) / ctx.temperature
        entropy_slopes = None if of_entropy is None else of_entropy / ctx.temperature
        hidden_grad = torch.zeros_like(hidden, dtype=torch.float32)
        fused = _kernels(hidden)
        tiles = iter(kept if entropy_slopes is None else [])
        # A frozen output layer needs no gradient.
        accumulated = ctx.accumulated if ctx.needs_input_grad[1] else None
        weight_grad = torch.empty_like(weight) if ctx.needs_input_grad[1] and accumulated is None else None
        for number, columns in enumerate(_ranges(len(weight), ctx.tile.entries)):
            entries = _operand(weight[columns])
            entries_grad = None if accumulated is None else accumulated[columns]
            if weight_grad is not None:
                entries_grad = torch.zeros_like(entries, dtype=torch.float32)
            for rows in _ranges(len(hidden), ctx.tile.tokens):
                of_rows = _operand(hidden[rows])
                targets = local[rows] - columns.start
                entropy_slope = None if entropy_slopes is None else entropy_slopes[rows]
                if (exponentials := next(tiles, None)) is not None:
                    assert fused is not None
                    scales = (peaks[number, rows], log_normalizer[rows])
                    gradient = fused.gradient_of_kept(exponentials, targets, *scales, slopes[rows], logp[rows])
                else:
                    logits = product(of_rows, entries.t())
                    of_tile = _gradient if fused is None else fused.gradient_of_tile
                    described = (ctx.temperature, log_normalizer[rows], slopes[rows], entropy_slope, entropy[rows])
                    gradient = of_tile(logits, targets, *described, entries.dtype)
                add_product(hidden_grad[rows], gradient, entries)
                if entries_grad is not None:
                    add_product(entries_grad, gradient.t(), of_rows)
            if weight_grad is not None and entries_grad is not None:
                weight_grad[columns] = entries_grad
        return hidden_grad.to(hidden.dtype), weight_grad, None, None, None, None, None


def _gradient(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    normalizers: Tensor,
    slopes: Tensor,
    entropy_slopes: Tensor | None,
    entropies: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """The gradient of a tile, by torch's operators and in the memory of ``logits``; as :func:`.tile_kernels.gradient_of_tile`."""
    logp = _cooled(logits, temperature).sub_(normalizers.unsqueeze(1))
    gradient = logp.exp()
    if entropy_slopes is None:
        gradient *= -slopes.unsqueeze(1)
    else:
        # dH / dz = -p * (log p + H)
        gradient *= logp.mul_(-entropy_slopes.unsqueeze(1)).sub_((slopes + entropy_slopes * entropies).unsqueeze(1))
    _add_at_targets(gradient, targets, slopes)
    return gradient.to(dtype)


def _kernels(hidden: Tensor) -> ModuleType | None:
    """The kernels that pass over a tile only once; None on a CPU, or if Triton is not installed."""
    if not hidden.is_cuda or importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module("asyncrl.learners.megatron.layers.tile_kernels")


def _ranges(length: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def _operand(matrix: Tensor) -> Tensor:
    """``matrix`` in the data type it is multiplied in: its own on a GPU, and float32 on a CPU, which has no
    mixed-precision product."""
    return matrix if matrix.is_cuda else matrix.float()


def _cooled(values: Tensor, temperature: float) -> Tensor:
    """``values / temperature``, in place. Dividing by 1 changes nothing, but passes over all of them."""
    return values if temperature == 1.0 else values.div_(temperature)


def _at_targets(values: Tensor, targets: Tensor) -> Tensor:
    """[n], the value in the column of each row's target; 0 if the column is in another tile."""
    inside = (targets >= 0) & (targets < values.size(1))
    return torch.where(inside, values.gather(1, torch.where(inside, targets, 0).unsqueeze(1)).squeeze(1), 0.0)


def _add_at_targets(values: Tensor, targets: Tensor, added: Tensor) -> None:
    """Add ``added`` to the column of each row's target, where the column is in this tile."""
    inside = (targets >= 0) & (targets < values.size(1))
    values.scatter_add_(1, torch.where(inside, targets, 0).unsqueeze(1), torch.where(inside, added, 0.0).unsqueeze(1))
