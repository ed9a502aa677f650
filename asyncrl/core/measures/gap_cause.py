"""Tells what a gap between the log-probabilities of learner and engines probably comes from.

What always holds: a cause is named from what was measured, and from what the recipe says of both sides; where neither tells one
cause from others, none is named. :mod:`asyncrl.core.measures.gap_sums` measures.
"""

from collections.abc import Sequence
from enum import StrEnum
from statistics import fmean

import msgspec

from asyncrl.core.measures.units import percent

ROUNDING = {"float32": 2e-3, "float16": 0.03, "bfloat16": 0.1}
"""The largest mean gap of log-probabilities, in nats, that rounding explains, by the coarser type of both sides."""
FAR, TWICE, GROWS = 3.0, 2.0, 1.25
"""How many times another mean gap one must be: to be far above it; to stand out from the mean of all; to have grown with a
version of age."""
EXPLAINED, OTHER_SLOPE, STEEPEST = 0.8, 0.05, 3.0
"""A temperature explains at least this share of the squared differences of log-odds, by a slope that is at least so far from 1,
and at most so steep, or as flat. An engine that guesses gives a line too, which is flat."""


class Cause(StrEnum):
    """What a gap comes from."""

    ROUNDING = "rounding"
    STALE_WEIGHTS = "stale weights"
    TEMPERATURE = "temperature convention"
    TEMPLATE = "template"
    EXPERTS = "routing of experts"
    TYPES = "dtype"
    UNKNOWN = "unknown"


class LikelyCause(msgspec.Struct, frozen=True):
    """A cause, and a sentence with its evidence and a remedy."""

    cause: Cause
    why: str

    def __str__(self) -> str:
        return self.why if self.cause is Cause.UNKNOWN else f"{self.cause}: {self.why}"


class GapEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a gap: means of |learner - engine| (nats) over tokens, each None without such tokens.

    Attributes:
        fresh: tokens that the version being trained sampled.
        one_version: those of them that lie in rows which that version sampled alone.
        turn_begins: those of them that are the first of a turn.
        older: tokens that the version before it sampled.
        slope: of the engine's log-odds over the learner's, among the fresh tokens; 1 if they agree.
        explained: share of the squared differences of log-odds that this slope explains.
    """

    fresh: float | None = None
    one_version: float | None = None
    turn_begins: float | None = None
    older: float | None = None
    slope: float | None = None
    explained: float | None = None

    @classmethod
    def mean(cls, several: Sequence["GapEvidence"]) -> "GapEvidence":
        """Return the means of several steps, each of those that know it."""
        known = {
            name: [value for each in several if (value := getattr(each, name)) is not None] for name in cls.__struct_fields__
        }
        return cls(**{name: fmean(values) for name, values in known.items() if values})


class GapSides(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of both sides.

    Attributes:
        learner: the type it computes in.
        engines: the types of the engines.
        routes: whether the model has experts, and each side chooses them by itself.
    """

    learner: str
    engines: frozenset[str]
    routes: bool = False

    @property
    def coarsest(self) -> str:
        """The coarsest type of all."""
        return max(self.engines | {self.learner}, key=ROUNDING.__getitem__)

    @property
    def rounding(self) -> float:
        """The largest mean gap that rounding explains."""
        return ROUNDING[self.coarsest]


def likely_cause(seen: GapEvidence, sides: GapSides) -> LikelyCause:
    """Say what a gap probably comes from. What leaves a trace of its own comes before what is merely possible."""
    fresh, rounding = seen.fresh, sides.rounding
    if fresh is None:
        return LikelyCause(Cause.UNKNOWN, "no token is of the version that was trained, so its cause cannot be told")
    if fresh <= rounding:
        if seen.older is not None and seen.older > FAR * fresh:
            why = "tokens of older versions differ most, which the correction is for; others differ by rounding"
            return LikelyCause(Cause.STALE_WEIGHTS, why)
        return LikelyCause(Cause.ROUNDING, "fresh tokens differ by no more than the types of learner and engines explain")
    return _stale_context(seen, fresh, rounding) or _temperature(seen) or _by_place_or_side(seen, fresh, sides)


def _stale_context(seen: GapEvidence, fresh: float, rounding: float) -> LikelyCause | None:
    if seen.one_version is None or seen.one_version > min(rounding, fresh / TWICE):
        return None
    return LikelyCause(
        Cause.STALE_WEIGHTS,
        f"fresh tokens agree where their whole episode is of one version ({seen.one_version:.3g} nats), and differ where "
        "it began under an older one, whose keys and values the engine goes on with; a lower learner.lr or "
        "buffer.pipeline_depth, or shorter episodes, make that less",
    )


def _temperature(seen: GapEvidence) -> LikelyCause | None:
    slope, explained = seen.slope, seen.explained
    if slope is None or explained is None or explained < EXPLAINED:
        return None
    if abs(slope - 1) < OTHER_SLOPE or not 1 / STEEPEST < slope < STEEPEST:
        return None
    return LikelyCause(
        Cause.TEMPERATURE,
        f"the engine's log-odds are {slope:.3g} times the learner's, which explains {percent(explained)} of the difference, as "
        f"if its temperature were {1 / slope:.2g} times the learner's; compare sampling.temperature with generators.engine, and "
        "look for a scale or cap of logits in config.json that only one side knows",
    )


def _by_place_or_side(seen: GapEvidence, fresh: float, sides: GapSides) -> LikelyCause:
    unlike = sides.engines != {sides.learner}
    if not unlike and seen.older is not None and seen.older > GROWS * fresh:
        return LikelyCause(
            Cause.STALE_WEIGHTS,
            f"fresh tokens differ by {fresh:.3g} nats and those of the version before by {seen.older:.3g}, as if engines sampled "
            "with older weights than those of the version that they report",
        )
    if seen.turn_begins is not None and seen.turn_begins > TWICE * fresh:
        return LikelyCause(
            Cause.TEMPLATE,
            f"the first tokens of turns differ by {seen.turn_begins:.3g} nats, all by {fresh:.3g} in the mean, as if engine and "
            "learner had other tokens before them; look at the chat template, and at what stands between turns",
        )
    if unlike:
        return LikelyCause(
            Cause.TYPES,
            f"learner ({sides.learner}) and engines ({', '.join(sorted(sides.engines))}) compute in unlike types, whose rounding "
            "grows with the logits; set learner.dtype and generators.dtype alike",
        )
    if sides.routes:
        return LikelyCause(
            Cause.EXPERTS,
            "the model has experts, and on close scores learner and engines choose others; learner.experts.replay=true has the "
            "learner take those of the engine",
        )
    coarser = next((name for name, most in ROUNDING.items() if most > sides.rounding and fresh <= most), None)
    if coarser is not None:
        return LikelyCause(
            Cause.TYPES,
            f"the gap is no larger than the rounding of {coarser}, and at all places alike, as where one side has a coarser type "
            f"than {sides.coarsest}; look at generators.engine (quantization, kv_cache_dtype) and at kernels",
        )
    why = "it is of fresh tokens, at all places alike, and no temperature explains it: look at positions, attention and kernels"
    return LikelyCause(Cause.UNKNOWN, why)
