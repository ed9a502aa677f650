"""Keeps the episodes of training steps: each data-parallel slice writes the trajectories that it trains, and its share of those
that nobody trains."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from asyncrl.core.batch import Batch, RowName, SampleName
from asyncrl.core.episode import Episode
from asyncrl.core.recipe.environment import label_of
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.trajectories import NoTrajectoriesConfig
from asyncrl.episodes.background import BackgroundWriter
from asyncrl.episodes.files import training_file
from asyncrl.episodes.kept_sample import kept_episodes
from asyncrl.episodes.schema import Kind, TokenFate
from asyncrl.episodes.writer import KeptTrajectory, decoder, fate_code, untrained
from asyncrl.learners.rank import RankSpec

if TYPE_CHECKING:
    from asyncrl.learners.batches.token_records import TokenRecord, TokenRecords


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

    def chosen(self, batch: Batch, trained: list[RowName]) -> list[RowName]:
        """Name the trajectories of ``batch`` that this rank keeps; the ranks of all slices together keep whole episodes.

        Args:
            batch: the batch.
            trained: the rows that this slice trains. Trajectories that nobody trains are shared out over the slices.
        """
        if not self._rank.is_slice_reporter or isinstance(self._keep, NoTrajectoriesConfig):
            return []
        parts = {each.name: range(len(each.trajectories)) for each in batch.episodes}
        in_loss = {row.name for row in batch.rows}
        every = [(*name, part) for name, of_episode in parts.items() for part in of_episode]
        untrained_here = [name for name in every if name not in in_loss][self._rank.data_rank :: self._rank.layout.data]
        mine = {*trained, *untrained_here}
        kept = [(*name, part) for name in kept_episodes(batch, self._keep) for part in parts[name]]
        return [name for name in kept if name in mine]

    def write(self, batch: Batch, episodes: Mapping[SampleName, Episode], chosen: list[RowName], records: "TokenRecords") -> None:
        """Write the ``chosen`` trajectories, in the background.

        Args:
            batch: the batch that was trained.
            episodes: at least those of the chosen trajectories.
            records: what the loss made of their tokens.
        """
        if not chosen:
            return
        seen = records.rows()
        path = training_file(self._folder, batch.version + 1, self._rank.data_rank)
        sources, in_loss = {each.name: each.source for each in batch.episodes}, {row.name for row in batch.rows}
        rows = []
        for name in chosen:  # what waits to be written holds no other episode in memory
            episode, part, source = episodes[name[:2]], name[2], sources[name[:2]]
            if name in in_loss:
                rows.append(kept(episode, part, batch, source, seen.get(name)))
            else:
                rows.append(untrained(episode, part, Kind.TRAIN, step=batch.version + 1, version=batch.version, source=source))
        self._writer.put(path, lambda: rows)

    def news(self) -> str:
        """A sentence for the user that was not returned before; empty if there is none."""
        return self._writer.news()

    def flush(self, seconds: float) -> bool:
        """Wait until everything so far is written or given up, for at most ``seconds``; whether it is."""
        return self._writer.flush(seconds)


def kept(episode: Episode, part: int, batch: Batch, source: str, record: "TokenRecord | None") -> KeptTrajectory:
    """Return the kept trajectory of a row of ``batch``, given what the loss made of its tokens; None if no pass saw it."""
    step, version, trajectory = batch.version + 1, batch.version, episode.trajectories[part]
    sampled = trajectory.loss_mask
    fates = np.full(len(trajectory), fate_code(TokenFate.GIVEN), np.int8)
    if record is None:  # no token of its mini-batch may enter the loss, so all are too old
        fates[sampled] = fate_code(TokenFate.STALE)
        return KeptTrajectory(episode, part, Kind.TRAIN, step, version, source, fates)
    fate = np.full(len(record.weights), fate_code(TokenFate.TRAINED), np.int8)
    left_out = {TokenFate.STALE: record.stale, TokenFate.MASKED: record.masked, TokenFate.REJECTED: record.rejected}
    for why, tokens in left_out.items():
        fate[tokens] = fate_code(why)
    fates[sampled] = fate

    def over_all(values: np.ndarray) -> np.ndarray:
        spread = np.zeros(len(trajectory), np.float32)
        spread[sampled] = values
        return spread

    return KeptTrajectory(
        episode,
        part,
        Kind.TRAIN,
        step,
        version,
        source,
        fates,
        learner_logprobs=over_all(record.logprobs),
        advantages=over_all(record.advantages),
        weights=over_all(record.weights),
    )
