"""What a rank of the learner reports of a training step. Importing this does not import torch."""

import msgspec

from asyncrl.core.measures.metrics import Reading
from asyncrl.core.measures.time_split import LearnerTime


class StepReport(msgspec.Struct, frozen=True):
    """What one rank reports of the training step from one version to the next.

    Attributes:
        readings: readings of the whole batch on one rank, empty on all others, so that combining them gives the global
            values.
        weights_moved: whether weights of the rank's part of the policy moved: by a gradient, or by what momentum or weight decay
            made of none.
        time: what the rank spent the training step on; nothing on all ranks but the one that reports.
        news: what the user should know; empty, or a sentence.
    """

    readings: list[Reading]
    weights_moved: bool
    time: LearnerTime = LearnerTime()
    news: str = ""
