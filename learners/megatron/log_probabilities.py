"""Log-probabilities and entropy from logits whose vocabulary is split over the tensor-parallel ranks."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def token_log_probabilities(
    logits: Tensor, targets: Tensor, temperature: float, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target under ``softmax(logits / temperature)``, and that distribution's entropy.

    No rank holds the logits of the whole vocabulary.

    Args:
        logits: [n, vocabulary / group size], this rank's part: its ``group.rank()``-th slice.
        targets: int64 [n], token ids.
        group: the ranks that share the vocabulary. All call this together.

    Returns:
        float32 [n] nats, with a gradient; float32 [n] nats, without one.
    """
    return _TokenLogProbabilities.apply(logits, targets, temperature, group)


class _TokenLogProbabilities(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
        scaled = logits.float() / temperature
        peak = scaled.amax(-1)
        if group.size() > 1:
            dist.all_reduce(peak, dist.ReduceOp.MAX, group)
        scaled -= peak.unsqueeze(1)
        local = targets - group.rank() * logits.size(1)
        is_local = (local >= 0) & (local < logits.size(1))
        local = torch.where(is_local, local, 0).unsqueeze(1)
        exponentials = scaled.exp()
        sums = torch.stack(
            [
                torch.where(is_local, scaled.gather(1, local).squeeze(1), 0.0),
                exponentials.sum(-1),
                torch.linalg.vecdot(exponentials, scaled),
            ]
        )
        if group.size() > 1:
            dist.all_reduce(sums, group=group)
        chosen, total, weighted = sums
        log_total = total.log()
        probabilities = exponentials.div_(total.unsqueeze(1))
        entropy = log_total - weighted / total
        ctx.save_for_backward(probabilities, local, is_local)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        ctx.mark_non_differentiable(entropy)
        return chosen - log_total, entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
        probabilities, local, is_local = ctx.saved_tensors
        slope = (grad / ctx.temperature).unsqueeze(1)
        gradient = probabilities * -slope
        gradient.scatter_add_(1, local, torch.where(is_local.unsqueeze(1), slope, 0.0))
        return gradient.to(ctx.dtype), None, None, None
