"""Computes, for many rows at once, the numbers by which kept episodes are sorted."""

from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncrl.core.ids import NOT_SAMPLED


class Measure(StrEnum):
    """What episodes can be sorted by."""

    REWARD = "reward"
    """The final reward, the lowest first."""
    GAP = "gap"
    """Mean |learner - engine| log-probability over the sampled tokens, the largest first."""
    STALENESS = "staleness"
    """Mean staleness of the sampled tokens, the largest first."""
    LENGTH = "length"
    """Tokens, the most first."""


COLUMNS = {
    Measure.REWARD: ("reward",),
    Measure.GAP: ("versions", "logprobs", "learner_logprobs"),
    Measure.STALENESS: ("version", "versions"),
    Measure.LENGTH: ("token_ids",),
}
"""The columns that each measure is computed from."""


def measure(rows: pa.Table, by: Measure) -> np.ndarray:
    """Return float64 [rows], NaN where there is no such number: the gap of an episode that the learner never saw."""
    match by:
        case Measure.REWARD:
            return _floats(rows["reward"])
        case Measure.LENGTH:
            return _floats(pc.fill_null(pc.list_value_length(rows["token_ids"]), 0))
        case Measure.STALENESS:
            return _mean_staleness(rows)
        case Measure.GAP:
            return _mean_gap(rows)


def _mean_staleness(rows: pa.Table) -> np.ndarray:
    versions, row_of = _flat(rows["versions"])
    sampled = versions != NOT_SAMPLED
    trained = rows["version"].to_numpy()
    return _means((trained[row_of] - versions)[sampled], row_of[sampled], len(rows))


def _mean_gap(rows: pa.Table) -> np.ndarray:
    gaps = np.full(len(rows), np.nan)
    seen = np.flatnonzero(rows["learner_logprobs"].is_valid().to_numpy())
    if len(seen):
        rows = rows.take(seen)
        versions, row_of = _flat(rows["versions"])
        engine, learner = _flat(rows["logprobs"])[0], _flat(rows["learner_logprobs"])[0]
        sampled = versions != NOT_SAMPLED
        gaps[seen] = _means(np.abs(learner - engine)[sampled], row_of[sampled], len(rows))
    return gaps


def _flat(lists: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of all lists in one array, and for each of them the number of its list."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    return pc.list_flatten(lists).to_numpy(), np.repeat(np.arange(len(lengths)), lengths)


def _means(values: np.ndarray, row_of: np.ndarray, rows: int) -> np.ndarray:
    counts = np.bincount(row_of, minlength=rows)
    sums = np.bincount(row_of, weights=values.astype(np.float64), minlength=rows)
    means: np.ndarray = np.divide(sums, counts, out=np.full(rows, np.nan), where=counts > 0)
    return means


def _floats(values: pa.ChunkedArray) -> np.ndarray:
    floats: np.ndarray = values.cast(pa.float64()).to_numpy()
    return floats
