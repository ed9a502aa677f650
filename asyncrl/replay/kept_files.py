"""Trajectories that runs have kept in Parquet files, as episodes to be trained again.

What always holds: an episode is taken whole or not at all, and is what its run sampled, with its log-probabilities and rewards.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from asyncrl.core.episode import Episode
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import NOT_SAMPLED, GroupId, PolicyVersion, TaskId
from asyncrl.core.trajectory import Sampling, StartReason, StopReason, Trajectory, Turn, VersionSpan
from asyncrl.episodes.schema import Kind
from asyncrl.episodes.writer import Decode

TOKENS = "token_ids"
"""A column that files of kept trajectories have."""
_COLUMNS = (
    *("kind", "step", "task_id", "group_id", "sample_index", "attempt", "part", "parts", "role", "parent", "shared", "why"),
    *("trained", "temperature", "top_p", "top_k", "min_p", "stop_reason", "reward", "role_rewards", "metrics", "prompt", "turns"),
    *("turn_rewards", TOKENS, "versions", "logprobs"),
)
_TEACHER = "teacher_logprobs"
"""A column that files of earlier releases lack."""
_DIGITS = 6
"""Digits of a number that was kept in float32 and written in the recipe with fewer."""


def kept_episodes_of(files: Sequence[Path], first: int, last: int | None, decode: Decode) -> list[Episode]:
    """Read the training episodes of the steps ``first`` to ``last`` (None: all later ones) of one run, in the order of the steps.

    Args:
        files: the run's.
        decode: makes text of token ids with the tokenizer of the model that is to be trained.

    Raises:
        RecipeError: a file is none of kept trajectories, or of another run, or the tokens are another tokenizer's.
    """
    rows: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for file in files:
        for row in _read(file, first, last):
            rows.setdefault((row["step"], row["group_id"], row["sample_index"]), []).append(row)
    episodes = []
    tasks: dict[tuple[int, int], str] = {}
    for key in sorted(rows):
        parts = sorted(rows[key], key=lambda row: row["part"] or 0)
        step, group, sample = key
        task = tasks.setdefault((step, group), parts[0]["task_id"])
        if len(parts) > (parts[0]["parts"] or 1) or any(row["task_id"] != task for row in parts):
            problem = f"files of two runs, or one file twice, have sample {sample} of group {group} in step {step}"
            raise RecipeError("--from", problem, "name files of one run, each once, or the folders of several runs")
        if len(parts) == (parts[0]["parts"] or 1):  # else a file of another rank is missing
            episodes.append(_episode(parts))
            _check_tokens(parts[0], decode)
    return episodes


def _read(file: Path, first: int, last: int | None) -> list[dict[str, Any]]:
    try:
        later = [name for name in pq.read_schema(file).names if name == _TEACHER]
        read = pq.read_table(file, columns=[*_COLUMNS, *later])
    except (OSError, pa.ArrowException) as error:
        problem = f"{file} is no file of kept trajectories: {' '.join(str(error).split())[:200]}"
        raise RecipeError("--from", problem, "name files that `tracking.trajectories` kept, or conversations") from error
    wanted = (pc.field("kind") == Kind.TRAIN.value) & (pc.field("step") >= first)
    if last is not None:
        wanted &= pc.field("step") <= last
    found: list[dict[str, Any]] = read.filter(wanted).to_pylist()
    return found


def _check_tokens(row: dict[str, Any], decode: Decode) -> None:
    ids = row["token_ids"][: row["turns"][0]["start"]] if row["turns"] else row["token_ids"]
    if decode(ids) != row["prompt"]:
        problem = (
            f"has another tokenizer than the model that sampled task {row['task_id']}: its prompt reads {decode(ids)[:60]!r}"
        )
        raise RecipeError("model.path", problem, "train a model with the tokenizer of the episodes")


def _episode(parts: Sequence[dict[str, Any]]) -> Episode:
    row = parts[0]
    temperature, top_p, min_p = (round(row[name], _DIGITS) for name in ("temperature", "top_p", "min_p"))
    return Episode(
        task_id=TaskId(row["task_id"]),
        group_id=GroupId(row["group_id"]),
        sample_index=row["sample_index"],
        attempt=row["attempt"],
        trajectories=tuple(map(_trajectory, parts)),
        reward=row["reward"],
        role_rewards=dict(row["role_rewards"] or ()),
        stop_reason=StopReason(row["stop_reason"]),
        sampling=Sampling(temperature, top_p, row["top_k"], min_p),
        metrics=dict(row["metrics"] or ()),
    )


def _trajectory(row: dict[str, Any]) -> Trajectory:
    versions = np.array(row["versions"], np.int32)
    cuts = [0, *(np.flatnonzero(np.diff(versions)) + 1).tolist(), len(versions)]
    spans = [VersionSpan(a, b, PolicyVersion(int(versions[a]))) for a, b in pairwise(cuts)]
    taught, sampled = row.get(_TEACHER), versions != NOT_SAMPLED
    named = row["turn_rewards"] or [()] * len(row["turns"])
    return Trajectory(
        token_ids=np.array(row["token_ids"], np.int32),
        logprobs=np.array(row["logprobs"], np.float32),
        loss_mask=sampled,
        teacher_logprobs=None if taught is None else np.array(taught, np.float32)[sampled],
        version_spans=tuple(spans),
        turns=tuple(
            Turn(turn["start"], turn["end"], turn["reward"], rewards=dict(own or ()))
            for turn, own in zip(row["turns"], named, strict=True)
        ),
        part=row["part"] or 0,
        role=row["role"] or "",
        parent=row["parent"],
        shared=row["shared"] or 0,
        why=StartReason(row["why"] or StartReason.FIRST),
        trained=row["trained"] is not False,
    )
