"""Sums that tell of the gap between learner and engines what :mod:`asyncrl.core.measures.gap_cause` asks. They add up."""

from collections.abc import Sequence

import numpy as np

from asyncrl.core.measures.gap_cause import GapEvidence

SURE, UNLIKELY = -0.01, -12.0
"""Log-probabilities by the learner between which log-odds are compared: rounding spoils those of what is surer, or rarer."""


def log_odds_line(sums: Sequence[float]) -> tuple[float, float] | None:
    """Fit the engine's log-odds ``y`` of tokens to the learner's ``x``, by least squares.

    At another temperature all logits are divided by another number, and of two tokens the log-odds too. So that is a line, while
    other causes of a gap leave a cloud.

    Args:
        sums: number of tokens, and sums of x, y, x * x, x * y and y * y.

    Returns:
        its slope, and the share of the squared differences of ``y`` and ``x`` that it explains; None if that says nothing.
    """
    count, x, y, xx, xy, yy = sums
    if count < 3:
        return None
    spread, together, own = xx - x * x / count, xy - x * y / count, yy - y * y / count
    differ = xx - 2 * xy + yy
    if spread <= 1e-9 * xx or differ <= 1e-12 * (xx + yy):
        return None
    slope = together / spread
    return slope, 1 - max(0.0, own - slope * together) / differ


class GapSums:
    """Sums over tokens, given in arrays of ``n``."""

    def __init__(self) -> None:
        self._means = {name: np.zeros(2) for name in ("fresh", "one_version", "turn_begins", "older")}
        self._line = np.zeros(6)

    def add(
        self, engine: np.ndarray, learner: np.ndarray, staleness: np.ndarray, one_version: np.ndarray, turn_begins: np.ndarray
    ) -> None:
        """Add tokens.

        Args:
            engine, learner: float64 [n], log-probabilities (nats).
            staleness: int [n], versions.
            one_version: bool [n], whether their row is of one version.
            turn_begins: bool [n], whether they are the first of a turn.
        """
        gap, fresh = np.nan_to_num(np.abs(learner - engine), nan=np.inf), staleness == 0
        kinds = (fresh, fresh & one_version, fresh & turn_begins, staleness == 1)
        for sums, chosen in zip(self._means.values(), kinds, strict=True):
            sums += (gap[chosen].sum(), chosen.sum())
        compared = fresh & (learner < SURE) & (learner > UNLIKELY) & (engine < 0) & np.isfinite(engine)
        y, x = _log_odds(engine[compared]), _log_odds(learner[compared])
        self._line += (len(x), x.sum(), y.sum(), (x * x).sum(), (x * y).sum(), (y * y).sum())

    def evidence(self) -> GapEvidence:
        """Return what all of them say."""
        means = {name: float(total / count) for name, (total, count) in self._means.items() if count}
        slope, explained = log_odds_line(self._line.tolist()) or (None, None)
        return GapEvidence(**means, slope=slope, explained=explained)


def _log_odds(logprob: np.ndarray) -> np.ndarray:
    found: np.ndarray = logprob - np.log(-np.expm1(logprob))
    return found
