"""What learner and engines compute for a probe; see :mod:`asyncrl.run.weight_probe`."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.generators.completion import ScoredRow

PROBED_ROWS, PROBED_TOKENS = 4, 64
"""Rows of a probe, and tokens of each, at most: less than a hundredth of a step's work even where each publication is probed."""


class LearnerScores(msgspec.Struct, frozen=True):
    """What the learner computes for a probe.

    Attributes:
        version: the policy version that computed it.
        rows: token ids of each row.
        logprobs: for each row, the log-probabilities (nats, temperature 1) of all its tokens but the first.
        routed: whether the model has experts, which both sides choose by themselves in a probe.
    """

    version: PolicyVersion
    rows: tuple[tuple[int, ...], ...]
    logprobs: tuple[np.ndarray, ...]
    routed: bool = False


class EngineScores(NamedTuple):
    """What an engine computes for a probe: which generator of which pool, and the rows' scores."""

    worker: WorkerId
    pool: str
    scored: Sequence[ScoredRow]
