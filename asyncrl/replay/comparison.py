"""Compares a replayed step with what the run recorded of it: to the bit where layout and hardware are the run's, else closely."""

from collections.abc import Collection
from enum import StrEnum

import msgspec

from asyncrl.learners.metrics import GRAD_NORM, POLICY_LOSS
from asyncrl.run.folder.step_log import StepRecord

TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1}
"""How far a gradient norm may be from the recorded one, as a share of it, and a loss, as a share of its size or of 1 (the size of
advantages), whichever is more, where another layout or device rounds otherwise; by the type of the parameters."""


class Verdict(StrEnum):
    """How a replayed step compares with the recorded one."""

    EQUAL = "bit-equal"
    CLOSE = "within tolerance"
    DIFFERENT = "different"
    UNKNOWN = "not recorded"


class Comparison(msgspec.Struct, frozen=True):
    """A replayed step beside the recorded one.

    Attributes:
        loss, grad_norm, weights: how each compares; weights are compared by fingerprint, so they are never close.
        tolerance: what is close; None where everything has to be equal to the bit.
    """

    loss: Verdict
    grad_norm: Verdict
    weights: Verdict
    tolerance: float | None

    @property
    def holds(self) -> bool:
        """Whether everything that was recorded is as it should be."""
        found = [self.loss, self.grad_norm]
        if self.tolerance is None:
            found.append(self.weights)
        return Verdict.DIFFERENT not in found

    @property
    def is_equal(self) -> bool:
        """Whether everything was recorded, and is equal to the bit."""
        return {self.loss, self.grad_norm, self.weights} == {Verdict.EQUAL}


def compare(recorded: StepRecord | None, replayed: StepRecord, *, exact: bool, dtypes: Collection[str]) -> Comparison:
    """Compare a step with its record.

    Args:
        exact: layout and hardware are those of the run, so that everything must be equal to the bit.
        dtypes: types of the parameters in the run and here; the coarser one says what is close.
    """
    tolerance = None if exact else max(TOLERANCES[dtype] for dtype in dtypes)
    if recorded is None:
        return Comparison(Verdict.UNKNOWN, Verdict.UNKNOWN, Verdict.UNKNOWN, tolerance)

    def of(name: str, least: float) -> Verdict:
        before, now = recorded.readings.get(name), replayed.readings.get(name)
        if before is None or now is None:
            return Verdict.UNKNOWN
        if before == now:
            return Verdict.EQUAL
        close = tolerance is not None and abs(before - now) <= tolerance * max(abs(before), least)
        return Verdict.CLOSE if close else Verdict.DIFFERENT

    weights = Verdict.UNKNOWN
    if recorded.fingerprint is not None:
        weights = Verdict.EQUAL if recorded.fingerprint == replayed.fingerprint else Verdict.DIFFERENT
    return Comparison(of(POLICY_LOSS.name, 1.0), of(GRAD_NORM.name, 0.0), weights, tolerance)
