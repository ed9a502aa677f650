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
        float32 [n] nats each, both with a gradient.
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
        ctx.save_for_backward(probabilities, local, is_local, entropy)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        # The entropy's gradient is None where no loss asks for it, and then costs nothing.
        ctx.set_materialize_grads(False)
        return chosen - log_total, entropy

    @staticmethod
    def backward(ctx: Any, of_logp: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        probabilities, local, is_local, entropy = ctx.saved_tensors
        if of_logp is None and of_entropy is None:
            return None, None, None, None
        slope = (torch.zeros_like(entropy) if of_logp is None else of_logp / ctx.temperature).unsqueeze(1)
        gradient = probabilities * -slope
        gradient.scatter_add_(1, local, torch.where(is_local.unsqueeze(1), slope, 0.0))
        if of_entropy is not None:
            # dH / dz = -p * (log p + H)
            slope = (of_entropy / ctx.temperature).unsqueeze(1)
            gradient += slope * (torch.special.entr(probabilities) - probabilities * entropy.unsqueeze(1))
        return gradient.to(ctx.dtype), None, None, None
