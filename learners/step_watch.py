"""What may look at a training step while it is computed, such as a replay's hook. Looking changes nothing that is computed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.core.batch import RowName
    from asyncrl.learners.algorithm.losses import Outcome
    from asyncrl.learners.batches.micro_batch import MicroBatch


class StepWatch(Protocol):
    """Looks at a training step, on each rank."""

    def rows(self, norms: "Mapping[RowName, float]") -> None:
        """See, before each optimizer step, the norm of what each row of its mini-batch alone adds to its gradient.

        Args:
            norms: of all slices' rows, before clipping.
        """

    def micro_batch(self, batch: "MicroBatch", logp: "Tensor", outcome: "Outcome") -> None:
        """See a micro-batch that is being trained; only called on ranks of the last pipeline stage.

        Args:
            logp: float32 [n], log-probabilities of its tokens under the policy being optimised, which the loss has a gradient
                to.
        """
