"""Reads the episodes that a run kept as the modelled run draws them: turns, tokens and latencies of each, whole."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncrl.core.errors import RecipeError
from asyncrl.episodes.reader import Choice, EpisodeReader
from asyncrl.episodes.schema import Kind
from asyncrl.simulation.episodes import ModelEpisode, ModelEpisodes, ModelTurn

_COLUMNS = ("step", "version", "group_id", "sample_index", "attempt", "part", "shared", "task_id")
_TIMES = ("reset_s", "scoring_s")
MOST_EPISODES = 20_000
"""The most episodes that are read; the newest."""
_PROMPTS = 64
"""How many prompts are compared to find what all begin with."""


class Kept(msgspec.Struct, frozen=True):
    """The episodes that a run kept of its training, or of its evaluations.

    Attributes:
        episodes: what to draw from.
        count: how many there are.
        groups: how many groups they are of.
        environment_s: mean seconds from a turn's end until the environment had reacted.
        turn_s: mean seconds from a request's beginning until its turn was sampled.
        reset_s: mean seconds until an environment was ready.
        turns: mean turns of an episode.
        tasks: how many different tasks they are of.
    """

    episodes: ModelEpisodes
    count: int
    groups: int
    environment_s: float
    turn_s: float
    reset_s: float
    turns: float
    tasks: int


def read_kept(reader: EpisodeReader, kind: Kind, since: int = 0, least: int = MOST_EPISODES) -> Kept | None:
    """Read the kept episodes of a run; None if there are none of this kind.

    An episode of several trajectories is played as one with the turns of all, in their order.

    Args:
        since: the first step, or version, whose episodes are read.
        least: if there are fewer since then, the newest that many are read.

    Raises:
        EpisodesUnreadable: a file is damaged.
    """
    table = reader.table(
        Choice(kind=kind, since=_newest(reader, kind, since, min(least, MOST_EPISODES))),
        [*_COLUMNS, *_TIMES, "turns", "token_ids"],
    )
    if not len(table):
        return None
    lengths = pc.list_value_length(table["token_ids"]).to_pylist()
    rows = table.select([*_COLUMNS, *_TIMES, "turns"]).to_pylist()
    parts: dict[tuple[Any, ...], list[tuple[Mapping[str, Any], int]]] = defaultdict(list)
    for row, length in zip(rows, lengths, strict=True):
        at = row["step"] if kind is Kind.TRAIN else (row["version"], row["task_id"])
        parts[at, row["group_id"], row["sample_index"], row["attempt"]].append((row, length))
    groups: dict[tuple[Any, ...], list[ModelEpisode]] = defaultdict(list)
    waits: list[tuple[float, float]] = []
    for name, own in list(parts.items())[-MOST_EPISODES:]:
        own.sort(key=lambda each: each[0]["part"] or 0)
        if (episode := _episode(own)) is not None:
            groups[name[:2]].append(episode)
            waits += [(turn["environment_s"] or 0.0, turn["generating_s"] or 0.0) for row, _ in own for turn in row["turns"]]
    if not groups:
        return None
    everyone = [episode for group in groups.values() for episode in group]
    return Kept(
        episodes=ModelEpisodes(list(groups.values()), _preamble(table)),
        count=len(everyone),
        groups=len(groups),
        environment_s=float(np.mean([environment for environment, _ in waits])),
        turn_s=float(np.mean([generating for _, generating in waits])),
        reset_s=float(np.mean([episode.reset_s for episode in everyone])),
        turns=float(np.mean([len(episode.turns) for episode in everyone])),
        tasks=len({row["task_id"] for row in rows}),
    )


def _newest(reader: EpisodeReader, kind: Kind, since: int, least: int) -> int | None:
    """The step, or the version, since which episodes are read; None if all are."""
    column = "step" if kind is Kind.TRAIN else "version"
    found = reader.table(Choice(kind=kind), [column, "part"])
    steps = found.filter(pc.equal(pc.fill_null(found["part"], 0), 0))[column].drop_null()
    newest = np.sort(steps.to_numpy())
    first = min(since, int(newest[-least])) if len(newest) > least else 0
    return max(first, int(newest[-MOST_EPISODES])) if len(newest) > MOST_EPISODES else first or None


def _episode(parts: Sequence[tuple[Mapping[str, Any], int]]) -> ModelEpisode | None:
    turns: list[ModelTurn] = []
    left = 0
    for row, length in parts:
        end = row["shared"] or 0
        for turn in row["turns"]:
            if turn["end"] <= turn["start"] or turn["start"] < end:
                continue  # a turn of a copy, or one in which nothing was sampled
            given = turn["start"] - end + left
            turns.append(ModelTurn(given, turn["end"] - turn["start"], max(0.0, turn["environment_s"] or 0.0)))
            end, left = turn["end"], 0
        left += max(0, length - end)
    if not turns:
        return None
    first = parts[0][0]
    return ModelEpisode(tuple(turns), first["reset_s"] or 0.0, first["scoring_s"] or 0.0, left)


def _preamble(table: pa.Table) -> int:
    """How many tokens the prompts of different tasks begin with, as far as a sample of them shows."""
    seen: dict[str, np.ndarray] = {}
    for number in range(len(table)):
        if len(seen) == _PROMPTS:
            break
        task, turns = table["task_id"][number].as_py(), table["turns"][number].as_py()
        if task not in seen and turns and not (table["part"][number].as_py() or 0):
            seen[task] = np.asarray(table["token_ids"][number].as_py()[: turns[0]["start"]])
    prompts = list(seen.values())
    if len(prompts) < 2:
        return 0
    common = min(map(len, prompts))
    for prompt in prompts[1:]:
        differing = np.flatnonzero(prompt[:common] != prompts[0][:common])
        common = int(differing[0]) if len(differing) else common
    return common


def required(kept: Kept | None, run: str) -> Kept:
    """Return the kept episodes.

    Raises:
        RecipeError: there are none.
    """
    if kept is None:
        raise RecipeError(
            "--from",
            f"run {run} has kept no training episode whose turns could be drawn",
            "name a run with tracking.trajectories of kind sample or all",
        )
    return kept
