"""What the kept episodes say of each training step: what was trained, and which tokens moved the policy most.

A token's *pull* is ``|advantage * importance weight * (1 - probability)|``, the size of a policy gradient with respect to the
token's own logit. What always holds: tokens are read bit by bit, and only those of the largest pull are kept, of a bounded number
of steps, so that the page stays small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncrl.core.ids import NOT_SAMPLED
from asyncrl.episodes.reader import Choice, EpisodeReader
from asyncrl.episodes.schema import Kind
from asyncrl.episodes.visible import visible

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_STEPS = 100
"""Of more steps, so many are explained, evenly spread."""
TOKENS_EACH = 5
"""How many tokens are shown of each step."""
_TEXT = 60
_COLUMNS = ["task_id", "reward", "group_id", "turns", "token_ids", "versions", "learner_logprobs", "advantages", "weights"]


class MovingToken(msgspec.Struct, frozen=True, array_like=True):
    """A sampled token: its text and its turn's, its task, its turn counted from 1, and what makes up its pull."""

    token: str
    text: str
    task: str
    turn: int
    advantage: float
    weight: float
    probability: float
    pull: float


class TrainedStep(msgspec.Struct, frozen=True):
    """The kept episodes of a training step.

    Attributes:
        run: the number of the run.
        rows, tasks: how many trajectories are kept, of how many tasks.
        lowest, mean, highest: their rewards.
        up, down: how many of their tokens were made more and less likely.
        pull: of all of them.
        tokens: those of the largest pull.
    """

    run: int
    step: int
    rows: int
    tasks: int
    lowest: float
    mean: float
    highest: float
    up: int
    down: int
    pull: float
    tokens: list[MovingToken]


def trained_steps(reader: EpisodeReader, run: int, tokenizer: Tokenizer | None) -> list[TrainedStep]:
    """Read what the kept training episodes say of each step, in the order of steps.

    Args:
        run: its number in the report.
        tokenizer: of the run's model; without it, tokens are shown by their ids.
    """
    known = reader.steps(Kind.TRAIN)
    chosen = known if len(known) <= MOST_STEPS else [known[round(at)] for at in np.linspace(0, len(known) - 1, MOST_STEPS)]
    return [_explained(reader, step, run, tokenizer) for step in chosen]


def _explained(reader: EpisodeReader, step: int, run: int, tokenizer: Tokenizer | None) -> TrainedStep:
    rewards, groups, up, down, pull = list[float](), set[int](), 0, 0, 0.0
    most: list[MovingToken] = []
    for batch in reader.batches(Choice(kind=Kind.TRAIN, step=step), _COLUMNS):
        rewards += [each for each in batch["reward"].to_pylist() if math.isfinite(each)]
        groups |= set(batch["group_id"].to_pylist())
        trained = batch.filter(pc.is_valid(batch["advantages"]))
        if trained.num_rows:
            signed, pulls, found = _moving(trained, tokenizer)
            moved = pulls > 0
            up, down = up + int((signed[moved] > 0).sum()), down + int((signed[moved] < 0).sum())
            pull += float(pulls.sum())
            most = nlargest(TOKENS_EACH, [*most, *found], key=lambda token: token.pull)
    known = rewards or [math.nan]
    return TrainedStep(
        run, step, len(rewards), len(groups), min(known), float(np.mean(known)), max(known), up, down, pull, [*most]
    )


def _moving(batch: pa.RecordBatch, tokenizer: Tokenizer | None) -> tuple[np.ndarray, np.ndarray, Sequence[MovingToken]]:
    """Return the advantages and the pulls of all sampled tokens, and those of the largest pull."""
    versions = pc.list_flatten(batch["versions"]).to_numpy(zero_copy_only=False)
    row_of = np.repeat(np.arange(batch.num_rows), pc.list_value_length(batch["versions"]).to_numpy(zero_copy_only=False))
    sampled = np.flatnonzero(versions != NOT_SAMPLED)
    row_of = row_of[sampled]
    token_ids = pc.list_flatten(batch["token_ids"]).to_numpy(zero_copy_only=False)[sampled]
    advantages = _of_sampled(batch, "advantages", sampled, 0.0)
    weights = _of_sampled(batch, "weights", sampled, 1.0)
    probabilities = np.exp(np.minimum(_of_sampled(batch, "learner_logprobs", sampled, 0.0), 0.0))
    pulls = np.nan_to_num(np.abs(advantages * weights * (1 - probabilities)), posinf=0.0)
    turns = pc.list_flatten(batch["turns"])
    lengths = pc.subtract(pc.struct_field(turns, "end"), pc.struct_field(turns, "start")).to_numpy(zero_copy_only=False)
    turn_of = np.repeat(np.arange(len(lengths)), lengths)  # the sampled tokens of a row are exactly those of its turns, in order
    first_turn = np.searchsorted(pc.list_parent_indices(batch["turns"]).to_numpy(zero_copy_only=False), row_of)
    texts = pc.struct_field(turns, "text")

    def largest() -> Iterator[MovingToken]:
        for at in np.argsort(-pulls, kind="stable")[:TOKENS_EACH].tolist():
            if pulls[at] > 0:
                yield MovingToken(
                    visible(_piece(int(token_ids[at]), tokenizer)),
                    visible((texts[int(turn_of[at])].as_py() or "")[:_TEXT]),
                    visible(batch["task_id"][int(row_of[at])].as_py()),
                    int(turn_of[at] - first_turn[at]) + 1,
                    *(float(f"{values[at]:.4g}") for values in (advantages, weights, probabilities, pulls)),
                )

    return advantages, pulls, list(largest())


def _of_sampled(batch: pa.RecordBatch, name: str, sampled: np.ndarray, missing: float) -> np.ndarray:
    """Return a column's values of the sampled tokens; ``missing`` where a row has none, or a token's is no number."""
    lengths = pc.list_value_length(batch["versions"]).to_numpy(zero_copy_only=False)
    values = np.full(lengths.sum(), math.nan)
    there = np.repeat(pc.is_valid(batch[name]).to_numpy(zero_copy_only=False), lengths)
    values[there] = pc.list_flatten(batch[name]).to_numpy(zero_copy_only=False)
    found: np.ndarray = np.nan_to_num(values[sampled], nan=missing)
    return found


def _piece(token: int, tokenizer: Tokenizer | None) -> str:
    return f"⟨{token}⟩" if tokenizer is None else str(tokenizer.decode([token], skip_special_tokens=False))
