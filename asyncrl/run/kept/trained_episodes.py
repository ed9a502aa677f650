"""Keeps the trajectories of one data-parallel slice: chooses them before a training step, and writes them after it."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from asyncrl.core.batch import Batch, BatchRow
from asyncrl.core.recipe.environment import label_of
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.trajectories import NoTrajectoriesConfig
from asyncrl.core.trajectory import Trajectory
from asyncrl.episodes.background import BackgroundWriter
from asyncrl.episodes.files import training_file
from asyncrl.episodes.kept import KeptEpisode, fate_code, untrained
from asyncrl.episodes.sample import kept_rows
from asyncrl.episodes.schema import Kind, TokenFate
from asyncrl.episodes.writer import decoder
from learners.rank import RankSpec

if TYPE_CHECKING:
    from learners.batches.token_records import RowName, TokenRecord, TokenRecords


class TrainedEpisodes:
    """Keeps what one rank knows of the rows that its slice trains; nothing, if another rank of the slice does that.

    Args:
        recipe: says which trajectories are kept.
        model_path: folder of the tokenizer that the text is decoded with.
        folder: where the files go.
        rank: the place of this rank.
    """

    def __init__(self, recipe: Recipe, model_path: Path, folder: Path, rank: RankSpec) -> None:
        self._keep, self._folder, self._rank = recipe.tracking.trajectories, folder, rank
        self._writer = BackgroundWriter(partial(label_of, recipe.environment), partial(decoder, model_path))

    def chosen(self, batch: Batch, trained: "list[RowName]") -> "list[RowName]":
        """Name the rows of ``batch`` that this rank keeps.

        Args:
            batch: the batch.
            trained: the rows that this slice trains. Greedy rows, which nobody trains, are shared out over the slices.
        """
        if not self._rank.is_slice_reporter or isinstance(self._keep, NoTrajectoriesConfig):
            return []
        greedy = [(row.group_id, row.sample_index) for row in batch.rows if row.greedy]
        mine = {*trained, *greedy[self._rank.data_rank :: self._rank.layout.data]}
        return [name for name in kept_rows(batch, self._keep) if name in mine]

    def write(self, batch: Batch, rows: "Mapping[RowName, Trajectory]", chosen: "list[RowName]", records: "TokenRecords") -> None:
        """Write the ``chosen`` rows, in the background.

        Args:
            batch: the batch that was trained.
            rows: the trajectories of at least the chosen rows.
            records: what the loss made of their tokens.
        """
        if not chosen:
            return
        seen = records.rows()
        path = training_file(self._folder, batch.version + 1, self._rank.data_rank)
        of_batch = {(row.group_id, row.sample_index): row for row in batch.rows}
        # What waits to be written holds no other row in memory.
        episodes = [kept(rows[name], of_batch[name], batch, seen.get(name)) for name in chosen]
        self._writer.put(path, lambda: episodes)

    def news(self) -> str:
        """A sentence for the user that was not returned before; empty if there is none."""
        return self._writer.news()

    def flush(self, seconds: float) -> bool:
        """Wait until everything so far is written or given up, for at most ``seconds``; whether it is."""
        return self._writer.flush(seconds)


def kept(trajectory: Trajectory, row: BatchRow, batch: Batch, record: "TokenRecord | None") -> KeptEpisode:
    """Return the kept episode of a ``row`` of ``batch``, given what the loss made of its tokens; None if no pass saw it."""
    step, version = batch.version + 1, batch.version
    if row.greedy:
        return untrained(trajectory, Kind.TRAIN, step=step, version=version, source=row.source)
    sampled = trajectory.loss_mask
    fates = np.full(len(trajectory), fate_code(TokenFate.GIVEN), np.int8)
    if record is None:  # no token of its mini-batch may enter the loss, so all are too old
        fates[sampled] = fate_code(TokenFate.STALE)
        return KeptEpisode(trajectory, Kind.TRAIN, step, version, row.source, fates)
    fate = np.full(len(record.weights), fate_code(TokenFate.TRAINED), np.int8)
    left_out = {TokenFate.STALE: record.stale, TokenFate.MASKED: record.masked, TokenFate.REJECTED: record.rejected}
    for why, tokens in left_out.items():
        fate[tokens] = fate_code(why)
    fates[sampled] = fate

    def over_all(values: np.ndarray) -> np.ndarray:
        spread = np.zeros(len(trajectory), np.float32)
        spread[sampled] = values
        return spread

    return KeptEpisode(
        trajectory,
        Kind.TRAIN,
        step,
        version,
        row.source,
        fates,
        learner_logprobs=over_all(record.logprobs),
        advantages=over_all(record.advantages),
        weights=over_all(record.weights),
    )
