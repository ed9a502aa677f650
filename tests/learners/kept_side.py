"""What test ranks do that keep the episodes they train; forked from a server that has imported :mod:`rank_side`."""

from collections.abc import Collection
from pathlib import Path
from unittest import mock

import msgspec
from rank_side import Rows, new_learner

from asyncrl.core.batch import Batch
from asyncrl.core.measures.metrics import Reading
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.kept.trained_episodes import TrainedEpisodes
from learners import learner as learner_module
from learners.algorithm.losses import Outcome, policy_loss
from learners.batches.micro_batch import MicroBatch
from learners.rank import RankSpec

Seen = dict[tuple[int, int], list[tuple[list[float], list[float]]]]
"""For each row, for each pass over it: log-probabilities and weights of its sampled tokens."""


def train_and_keep(
    spec: RankSpec, recipe: Recipe, folder: Path, batch: Batch, rows: Rows, kept: Path
) -> tuple[list[Reading], Seen]:
    """One training step whose trajectories are kept as a rank's actor does it, and what its loss really did."""
    learner = new_learner(spec, recipe, folder)
    episodes = TrainedEpisodes(recipe, folder, kept, spec)
    needed = learner.rows_needed(batch)
    chosen = episodes.chosen(batch, needed)
    own = {name: rows[name] for name in {*needed, *chosen}}
    records = learner_module.TokenRecords(chosen)
    seen: Seen = {}

    def spied(logp, proximal, entropy, tokens: MicroBatch, *options) -> Outcome:
        outcome = policy_loss(logp, proximal, entropy, tokens, *options)
        for number, name in enumerate(tokens.names):
            mine = tokens.rows.index == number
            seen.setdefault(name, []).append((logp.detach()[mine].tolist(), _applied(outcome, tokens)[mine].tolist()))
        return outcome

    with mock.patch.object(learner_module, "policy_loss", spied):
        report = learner.step(batch, own, records)
    episodes.write(batch, own, chosen, records)
    assert episodes.flush(60), "the files are not written"
    assert episodes.news() == ""
    learner.close()
    return report.readings, seen


def _applied(outcome: Outcome, tokens: MicroBatch):
    """The weights as the loss's formula has them, worked out from its correction."""
    correction = outcome.correction
    return correction.weight * (tokens.mask & ~correction.masked & ~correction.rejected)


def with_greedy(batch: Batch, rows: Rows, greedy: Collection[tuple[int, int]]) -> tuple[Batch, Rows]:
    """The same batch, with the rows that ``greedy`` names sampled at temperature 0."""
    records = tuple(
        msgspec.structs.replace(record, greedy=True, loss_tokens=0)
        if (record.group_id, record.sample_index) in greedy
        else record
        for record in batch.rows
    )
    changed = {
        name: msgspec.structs.replace(row, sampling=msgspec.structs.replace(row.sampling, temperature=0.0))
        for name, row in rows.items()
        if name in greedy
    }
    return msgspec.structs.replace(batch, rows=records), {**rows, **changed}
