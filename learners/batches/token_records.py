"""What became of each sampled token of a training step, row by row, for whoever keeps the episodes.

What always holds: a record is of the first pass over its row in the training step, before the optimizer step of that pass.
Later epochs change nothing in it. Recording neither waits for a device nor changes anything that the loss computes with.
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.core.batch import RowName
from asyncrl.learners.algorithm.losses import Outcome
from asyncrl.learners.batches.micro_batch import MicroBatch


class TokenRecord(NamedTuple):
    """The sampled tokens of one row, in order; all arrays are [sampled tokens].

    Attributes:
        logprobs: float32, log-probability (nats) under the policy being trained.
        advantages: float32.
        weights: float32, the importance weight that the loss gave the token; 0 where the token is not in the loss.
        stale, masked, rejected: bool, why a token is not in the loss. At most one of them is true.
    """

    logprobs: np.ndarray
    advantages: np.ndarray
    weights: np.ndarray
    stale: np.ndarray
    masked: np.ndarray
    rejected: np.ndarray


class _Seen(NamedTuple):
    names: tuple[RowName, ...]
    rows: Tensor
    numbers: Tensor
    flags: Tensor


class TokenRecords:
    """Collects the records of the ``wanted`` rows while a batch is trained."""

    def __init__(self, wanted: Collection[RowName]) -> None:
        self._missing = set(wanted)
        self._wanted = frozenset(wanted)
        self._seen: list[_Seen] = []

    def see(self, batch: MicroBatch, logp: Tensor, outcome: Outcome) -> None:
        """Record what the loss made of a micro-batch, unless that is known of all its wanted rows.

        Args:
            batch: the micro-batch.
            logp: float32 [n], log-probabilities under the policy being trained.
            outcome: the loss, and what happened to each token in it.
        """
        if self._missing.isdisjoint(batch.names):
            return
        self._missing.difference_update(batch.names)
        correction = outcome.correction
        rejected = batch.mask & correction.rejected
        masked = batch.mask & correction.masked & ~correction.rejected
        # Both copy, so that nothing of the micro-batch is kept alive, or changed later, through them.
        numbers = torch.stack([logp.detach().float(), batch.advantages, outcome.weight])
        flags = torch.stack([~batch.mask, masked, rejected])
        self._seen.append(_Seen(batch.names, batch.rows.index, numbers, flags))

    def rows(self) -> dict[RowName, TokenRecord]:
        """Return the records of the wanted rows that were seen, in host memory. A row without a token in its mini-batch's
        loss may have been in no pass."""
        records = {}
        for names, rows, numbers, flags in self._seen:
            ends = np.searchsorted(rows.cpu().numpy(), np.arange(len(names)), side="right")
            columns = [*numbers.cpu().numpy(), *flags.cpu().numpy()]
            for name, start, end in zip(names, [0, *ends], ends, strict=False):
                if name in self._wanted:
                    records[name] = TokenRecord(*(column[start:end] for column in columns))
        return records
