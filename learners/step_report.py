"""What a rank of the learner reports of a training step. Importing this does not import torch."""

import msgspec

from asyncrl.core.measures.metrics import Reading
from learners.step_clock import PartSeconds


class StepReport(msgspec.Struct, frozen=True):
    """What one rank reports of the training step from one version to the next.

    Attributes:
        readings: readings of the whole batch on one rank, empty on all others, so that combining them gives the global
            values.
        weights_moved: whether weights of the rank's part of the policy moved: by a gradient, or by what momentum or weight decay
            made of none.
        seconds: what the rank spent the training step on; None on all ranks but the one that reports.
        news: what the user should be told; empty, or a sentence.
    """

    readings: list[Reading]
    weights_moved: bool
    seconds: PartSeconds | None = None
    news: str = ""

    def after_fetching(self, seconds: float) -> "StepReport":
        """Return the report with the ``seconds`` that the rank spent on fetching its rows as part of the data."""
        if self.seconds is None:
            return self
        spent = msgspec.structs.replace(self.seconds, data=self.seconds.data + seconds)
        return msgspec.structs.replace(self, seconds=spent)
