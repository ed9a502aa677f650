"""Counts what the routers of a mixture of experts do with a batch, and how often they would not choose what engines chose."""

import torch
from torch import Tensor

from asyncrl.learners import metrics
from asyncrl.learners.batches.metric_tallies import Tally
from asyncrl.learners.batches.observations import staleness_buckets


class ExpertUse:
    """Counts of one rank, of all its micro-batches. Those of all ranks add up.

    Attributes:
        loads: float64 [layers, experts], how often each expert was chosen.
        differing: float64 [buckets, 2], by the bucket of the staleness of the token sampled after it: of the experts that engines
            chose for a token, how many the router would not choose, and how many there are.

    Args:
        layers: layers with experts of the whole model.
        experts: experts of a layer.
        max_staleness: the largest staleness of a token in the loss.
    """

    def __init__(self, layers: int, experts: int, max_staleness: int, device: torch.device) -> None:
        self.loads = torch.zeros(layers, experts, dtype=torch.float64, device=device)
        self._buckets = list(staleness_buckets(max_staleness))
        self._oldest = torch.tensor([oldest for _, oldest in self._buckets], device=device)
        self.differing = torch.zeros(len(self._buckets), 2, dtype=torch.float64, device=device)

    def count(self, layer: int, taken: Tensor, own: Tensor) -> None:
        """Count the experts that tokens go to.

        Args:
            layer: the layer's place among those with experts.
            taken: int64 [t, per_token].
            own: bool [t], the tokens that count.
        """
        weights = own.double().unsqueeze(1).expand_as(taken)
        self.loads[layer].scatter_add_(0, taken.flatten(), weights.flatten())

    def compare(self, chosen: Tensor, found: Tensor, ages: Tensor) -> None:
        """Count the experts that engines chose, and those of them that a router would not.

        Args:
            chosen: int64 [t, per_token], by engines; -1 where they chose none.
            found: int64 [t, per_token], by the router.
            ages: int64 [t], the staleness of each token's next; -1 where that is not in the loss.
        """
        known = (chosen >= 0) & (ages >= 0).unsqueeze(1)
        missed = known & ~(chosen.unsqueeze(2) == found.unsqueeze(1)).any(2)
        counted = torch.stack([missed.sum(1), known.sum(1)], dim=1).double()
        self.differing.index_add_(0, torch.bucketize(ages.clamp(min=0), self._oldest), counted)

    def tally(self) -> Tally:
        """Return the readings of the whole batch, after the counts of all ranks have been added up."""
        shares = self.loads / self.loads.sum(1, keepdim=True).clamp(min=1.0)
        experts = shares.shape[1]
        entropy = -torch.special.xlogy(shares, shares).sum(1)
        one = entropy.new_ones(())
        tally = {
            metrics.LEAST_LOAD: torch.stack([shares.min() * experts, one]),
            metrics.MOST_LOAD: torch.stack([shares.max() * experts, one]),
            metrics.LOAD_ENTROPY: torch.stack([entropy.mean() / torch.tensor(experts).log(), one]),
        }
        if self.differing[:, 1].sum() > 0:
            tally[metrics.REPLAY_DIFFERS] = self.differing.sum(0)
            for (youngest, oldest), aged in zip(self._buckets, self.differing, strict=True):
                tally[metrics.by_staleness(metrics.REPLAY_DIFFERS, youngest, oldest)] = aged
        return tally
