"""Where learner and engine differ in the kept training episodes: by staleness, turn and place, with a likely cause.

What always holds: tokens are read bit by bit, and only the worst are kept, so that memory does not grow with the episodes.
"""

from collections.abc import Mapping
from heapq import nlargest

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncrl.core.ids import NOT_SAMPLED
from asyncrl.core.measures.gap_cause import ROUNDING, GapSides, likely_cause
from asyncrl.core.measures.gap_sums import GapSums
from asyncrl.episodes.reader import Choice, EpisodeReader
from asyncrl.episodes.schema import Kind

WORST = 10
"""How many tokens are shown."""
_TEXT = 160
_EDGES = (16, 64, 256, 1024, 4096)
_COLUMNS = ["step", "version", "task_id", "turns", "versions", "logprobs", "learner_logprobs"]


class GapMean(msgspec.Struct, frozen=True):
    """The mean of |learner - engine| over the ``tokens`` that have something in common."""

    what: str
    mean: float
    tokens: int


class GapToken(msgspec.Struct, frozen=True):
    """One token: where it is, counted from 1, what both sides made of it, and the text of its turn."""

    gap: float
    task: str
    step: int
    turn: int
    token: int
    staleness: int
    engine: float
    learner: float
    text: str


class GapTable(msgspec.Struct, frozen=True):
    """The means, the worst tokens, and what the gap probably comes from."""

    means: tuple[GapMean, ...]
    worst: tuple[GapToken, ...]
    cause: str


def gap_table(reader: EpisodeReader, recipe: Mapping[str, str], *, routed: bool) -> GapTable | None:
    """Read the kept training episodes that a loss has seen; None if there are none.

    Args:
        recipe: the run's, by key.
        routed: whether its model has experts.
    """
    told = GapSums()
    sums: dict[tuple[str, int], tuple[float, int]] = {}
    worst: list[GapToken] = []
    for batch in reader.batches(Choice(kind=Kind.TRAIN), _COLUMNS):
        seen = batch.filter(pc.is_valid(batch["learner_logprobs"]))
        if seen.num_rows:
            worst = nlargest(WORST, [*worst, *_add(seen, sums, told)], key=lambda token: token.gap)
    means = [GapMean(_label(*what), total / count, count) for what, (total, count) in sorted(sums.items())]
    cause = str(likely_cause(told.evidence(), _sides(recipe, routed=routed)))
    return GapTable(tuple(means), tuple(worst), cause) if means else None


def _sides(recipe: Mapping[str, str], *, routed: bool) -> GapSides:
    """Both sides, as far as the recipe tells; a type that it leaves to a pool or to the machine counts as the coarsest."""
    coarsest = max(ROUNDING, key=ROUNDING.__getitem__)
    learner, engine = (
        found if (found := recipe.get(key)) in ROUNDING else coarsest for key in ("learner.dtype", "generators.dtype")
    )
    routes = routed and recipe.get("learner.experts.replay") != "true"
    return GapSides(learner=learner, engines=frozenset({engine}), routes=routes)


def _add(batch: pa.RecordBatch, sums: dict[tuple[str, int], tuple[float, int]], told: GapSums) -> list[GapToken]:
    """Add the tokens of a batch to the sums, and return the worst of them."""
    versions, engine, learner = (
        pc.list_flatten(batch[name]).to_numpy(zero_copy_only=False) for name in ("versions", "logprobs", "learner_logprobs")
    )
    row_of = np.repeat(np.arange(batch.num_rows), pc.list_value_length(batch["versions"]).to_numpy(zero_copy_only=False))
    sampled = np.flatnonzero(versions != NOT_SAMPLED)
    row_of, engine, learner = row_of[sampled], engine[sampled].astype(np.float64), learner[sampled].astype(np.float64)
    staleness = batch["version"].to_numpy(zero_copy_only=False)[row_of] - versions[sampled]
    turns = pc.list_flatten(batch["turns"])
    lengths = pc.subtract(pc.struct_field(turns, "end"), pc.struct_field(turns, "start")).to_numpy(zero_copy_only=False)
    # The sampled tokens of a row are exactly those of its turns, in order.
    turn_of = np.repeat(np.arange(len(lengths)), lengths)
    turn = turn_of - np.searchsorted(pc.list_parent_indices(batch["turns"]).to_numpy(zero_copy_only=False), row_of) + 1
    place = np.arange(len(row_of)) - np.searchsorted(row_of, row_of) + 1
    gap = np.nan_to_num(np.abs(learner - engine), nan=np.inf)
    oldest = np.zeros(batch.num_rows, staleness.dtype)
    np.maximum.at(oldest, row_of, staleness)
    told.add(engine, learner, staleness, oldest[row_of] == 0, np.diff(turn_of, prepend=-1) != 0)
    for name, numbers in (("staleness", staleness), ("turn", turn), ("token", np.digitize(place, _EDGES, right=True))):
        for number in np.unique(numbers).tolist():
            total, count = sums.get((name, number), (0.0, 0))
            chosen = gap[numbers == number]
            sums[name, number] = total + float(chosen.sum()), count + len(chosen)
    texts = pc.struct_field(turns, "text")
    return [
        GapToken(
            gap=float(gap[at]),
            task=batch["task_id"][int(row_of[at])].as_py(),
            step=batch["step"][int(row_of[at])].as_py(),
            turn=int(turn[at]),
            token=int(at - np.searchsorted(turn_of, turn_of[at])) + 1,
            staleness=int(staleness[at]),
            engine=float(engine[at]),
            learner=float(learner[at]),
            text=(texts[int(turn_of[at])].as_py() or "")[:_TEXT],
        )
        for at in np.argsort(-gap, kind="stable")[:WORST].tolist()
    ]


def _label(name: str, number: int) -> str:
    if name != "token":
        return f"{name} {number}"
    first = 1 if number == 0 else _EDGES[number - 1] + 1
    return f"sampled token {first} to {_EDGES[number]}" if number < len(_EDGES) else f"sampled token {first} on"
