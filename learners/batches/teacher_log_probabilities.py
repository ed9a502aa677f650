"""What a teacher says of the rows of a micro-batch."""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from asyncrl.core.batch import BatchRow
from asyncrl.core.trajectory import Trajectory
from asyncrl.learners.batches.micro_batch import MicroBatch


def with_teachers(batch: MicroBatch, records: Sequence[BatchRow], rows: Sequence[Trajectory]) -> MicroBatch:
    """Return a micro-batch of ``rows`` with the teacher's log-probability of each of their sampled tokens.

    Raises:
        ValueError: naming the row, if no teacher was asked about it.
    """
    found = [np.empty(0, np.float32)]
    for record, row in zip(records, rows, strict=True):
        if row.teacher_logprobs is None:
            raise ValueError(
                f"{record.described}: no teacher was asked about it, and algorithm.teacher trains by a teacher's probabilities; "
                "the episode was played before the recipe had one"
            )
        found.append(row.teacher_logprobs)
    return msgspec.structs.replace(batch, logp_teacher=torch.from_numpy(np.concatenate(found)))
