"""Log-probability and entropy directly from hidden states: output layer and softmax, one tile at a time.

What always holds: only a few tiles of logits exist at once, in the forward and in the backward pass, however many
tokens there are and however large the vocabulary is. Between the passes, four numbers per token are kept, and the
backward pass computes the logits again. Logits are float32, whatever the data type of the weights.
"""

import importlib
import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class Tile(NamedTuple):
    """How many tokens, and how many entries of the vocabulary, are computed at once."""

    tokens: int
    entries: int


_CPU_TILE = Tile(tokens=1024, entries=512)
"""Fits a core's second-level cache, so that all passes over it, except the matrix products, cost almost nothing."""
_GPU_TILE = Tile(tokens=8192, entries=8192)
"""256 MiB of logits: enough work for a GPU to hide the time it takes to launch it."""


class Predictions(NamedTuple):
    """Log-probability of each sampled token, and entropy of the distribution that it was sampled from; float32 [n], nats."""

    logp: Tensor
    entropy: Tensor


def token_log_probabilities(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, group: dist.ProcessGroup, tile: Tile | None = None
) -> Predictions:
    """Compute the log-probability of each target under ``softmax(hidden @ weight.T / temperature)``, and that
    distribution's entropy.

    Args:
        hidden: [n, hidden], the same on all ranks of ``group``. Its gradient covers only this rank's part of the
            vocabulary; the whole gradient is the sum over the ranks. The backward of
            ``copy_to_tensor_model_parallel_region`` takes this sum, and so does that of the gather that undoes sequence
            parallelism.
        weight: [vocabulary / group size, hidden], part number ``group.rank()`` of the output layer.
        targets: int64 [n], token ids.
        temperature: temperature at which the targets were sampled.
        group: the ranks that divide the vocabulary. All of them make this call together.
        tile: what is computed at once; None for what suits the device.

    Returns:
        Both with a gradient. The gradient of the entropy costs time only if it is needed.
    """
    tile = tile or (_GPU_TILE if hidden.is_cuda else _CPU_TILE)
    return Predictions(*_TokenLogProbabilities.apply(hidden, weight, targets, temperature, group, tile))


class _TokenLogProbabilities(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, group: dist.ProcessGroup, tile: Tile
    ) -> tuple[Tensor, Tensor]:
        tokens, entries = len(hidden), len(weight)
        local = targets - group.rank() * entries
        # For each token and each tile of the vocabulary: the largest logit and, relative to it, the sum of exponentials and the
        # sum of exponentials times logits.
        peaks, totals, products = hidden.new_empty(3, -(-entries // tile.entries), tokens, dtype=torch.float32)
        chosen = hidden.new_zeros(tokens, dtype=torch.float32)
        fused = _kernels(hidden)
        for number, columns in enumerate(_ranges(entries, tile.entries)):
            of_entries = _operand(weight[columns]).t()
            for rows in _ranges(tokens, tile.tokens):
                if fused is not None:
                    logits = _product(_operand(hidden[rows]), of_entries)
                    into = (peaks[number, rows], totals[number, rows], products[number, rows])
                    fused.reduce_tile(logits, local[rows] - columns.start, temperature, chosen[rows], *into)
                    continue
                logits = _cooled(_product(_operand(hidden[rows]), of_entries), temperature)
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
        chosen, total, product = sums
        log_total = total.log()
        entropy = log_total - product / total
        log_normalizer = peak + log_total
        ctx.save_for_backward(hidden, weight, local, log_normalizer, entropy)
        ctx.temperature, ctx.tile = temperature, tile
        # The entropy's gradient is None if no loss needs it.
        ctx.set_materialize_grads(False)
        return chosen - log_normalizer, entropy

    @staticmethod
    def backward(ctx: Any, of_logp: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, local, log_normalizer, entropy = ctx.saved_tensors
        if of_logp is None and of_entropy is None:
            return (None,) * 6
        of_logp = torch.zeros_like(entropy) if of_logp is None else of_logp
        hidden_grad = torch.zeros_like(hidden, dtype=torch.float32)
        fused = _kernels(hidden)
        # A frozen output layer needs no gradient.
        weight_grad = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        for columns in _ranges(len(weight), ctx.tile.entries):
            entries = _operand(weight[columns])
            entries_grad = None if weight_grad is None else torch.zeros_like(entries, dtype=torch.float32)
            for rows in _ranges(len(hidden), ctx.tile.tokens):
                of_rows = _operand(hidden[rows])
                if fused is not None:
                    gradient = fused.gradient_of_tile(
                        _product(of_rows, entries.t()),
                        local[rows] - columns.start,
                        ctx.temperature,
                        log_normalizer[rows],
                        of_logp[rows],
                        None if of_entropy is None else of_entropy[rows],
                        entropy[rows],
                        entries.dtype,
                    )
                    _add_product(hidden_grad[rows], gradient, entries)
                    if entries_grad is not None:
                        _add_product(entries_grad, gradient.t(), of_rows)
                    continue
                logp = _cooled(_product(of_rows, entries.t()), ctx.temperature).sub_(log_normalizer[rows].unsqueeze(1))
                gradient = logp.exp()
                if of_entropy is None:
                    gradient *= -of_logp[rows].unsqueeze(1)
                else:
                    # dH / dz = -p * (log p + H)
                    slope = of_entropy[rows]
                    gradient *= logp.mul_(-slope.unsqueeze(1)).sub_((of_logp[rows] + slope * entropy[rows]).unsqueeze(1))
                _add_at_targets(gradient, local[rows] - columns.start, of_logp[rows])
                gradient = gradient.to(entries.dtype)
                _add_product(hidden_grad[rows], gradient, entries)
                if entries_grad is not None:
                    _add_product(entries_grad, gradient.t(), of_rows)
            if weight_grad is not None and entries_grad is not None:
                weight_grad[columns] = _cooled(entries_grad, ctx.temperature)
        return _cooled(hidden_grad, ctx.temperature).to(hidden.dtype), weight_grad, None, None, None, None


def _kernels(hidden: Tensor) -> ModuleType | None:
    """The kernels that pass over a tile only once; None on a CPU, or if Triton is not installed."""
    if not hidden.is_cuda or importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module("learners.megatron.layers.tile_kernels")


def _ranges(length: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def _operand(matrix: Tensor) -> Tensor:
    """``matrix`` in the data type it is multiplied in: its own on a GPU, and float32 on a CPU, which has no
    mixed-precision product."""
    return matrix if matrix.is_cuda else matrix.float()


def _product(left: Tensor, right: Tensor) -> Tensor:
    """The matrix product, accumulated and returned in float32."""
    return left @ right if left.dtype is torch.float32 else torch.mm(left, right, out_dtype=torch.float32)


def _cooled(values: Tensor, temperature: float) -> Tensor:
    """``values / temperature``, in place. Dividing by 1 changes nothing, but passes over all of them."""
    return values if temperature == 1.0 else values.div_(temperature)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype is torch.float32:
        total.addmm_(left, right)
    else:
        total += _product(left, right)


def _at_targets(values: Tensor, targets: Tensor) -> Tensor:
    """[n], the value in the column of each row's target; 0 if the column is in another tile."""
    inside = (targets >= 0) & (targets < values.size(1))
    return torch.where(inside, values.gather(1, torch.where(inside, targets, 0).unsqueeze(1)).squeeze(1), 0.0)


def _add_at_targets(values: Tensor, targets: Tensor, added: Tensor) -> None:
    """Add ``added`` to the column of each row's target, where the column is in this tile."""
    inside = (targets >= 0) & (targets < values.size(1))
    values.scatter_add_(1, torch.where(inside, targets, 0).unsqueeze(1), torch.where(inside, added, 0.0).unsqueeze(1))
