"""What a rank of the learner reports of a training step. Importing this does not import torch."""

import msgspec

from asyncrl.core.measures.metrics import Reading
from asyncrl.core.measures.time_split import LearnerTime


class Hardware(msgspec.Struct, frozen=True):
    """What a rank computes on. The same batches give the same weights to the bit on the same hardware in the same layout.

    Attributes:
        device: name of the GPU, or of the kind of processor.
        threads: CPU threads that its operators use.
        torch: version of torch.
    """

    device: str
    threads: int
    torch: str

    def __str__(self) -> str:
        return f"{self.device}, {self.threads} CPU threads, torch {self.torch}"


class StepReport(msgspec.Struct, frozen=True):
    """What one rank reports of the training step from one version to the next.

    Attributes:
        readings: readings of the whole batch on one rank, empty on all others, so that combining them gives the global
            values.
        weights_moved: whether weights of the rank's part of the policy moved: by a gradient, or by what momentum or weight decay
            made of none.
        time: what the rank spent the training step on; on all ranks but the one that reports, its processor time alone.
        news: what the user should know; empty, or a sentence.
        hardware: what the rank computed on; None on all ranks but the one that reports.
    """

    readings: list[Reading]
    weights_moved: bool
    time: LearnerTime = LearnerTime()
    news: str = ""
    hardware: Hardware | None = None
