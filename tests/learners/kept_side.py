"""What test ranks do that keep the episodes they train; forked from a server that has imported :mod:`rank_side`."""

from collections.abc import Collection
from pathlib import Path
from unittest import mock

import msgspec
from learner_samples import changed
from rank_side import Episodes, new_learner

from asyncrl.core.batch import Batch, RowName, SampleName
from asyncrl.core.measures.metrics import Reading
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners import learner as learner_module
from asyncrl.learners.algorithm.losses import Outcome, policy_loss
from asyncrl.learners.batches.micro_batch import MicroBatch
from asyncrl.learners.rank import RankSpec
from asyncrl.run.kept.trained_episodes import TrainedEpisodes

Seen = dict[RowName, list[tuple[list[float], list[float]]]]
"""For each row, for each pass over it: log-probabilities and weights of its sampled tokens."""


def train_and_keep(
    spec: RankSpec, recipe: Recipe, folder: Path, batch: Batch, episodes: Episodes, kept: Path
) -> tuple[list[Reading], Seen]:
    """One training step whose trajectories are kept as a rank's actor does it, and what its loss really did."""
    learner = new_learner(spec, recipe, folder)
    keeping = TrainedEpisodes(recipe, folder, kept, spec)
    needed = learner.rows_needed(batch)
    chosen = keeping.chosen(batch, needed)
    own = {name[:2]: episodes[name[:2]] for name in {*needed, *chosen}}
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
    keeping.write(batch, own, chosen, records)
    assert keeping.flush(60), "the files are not written"
    assert keeping.news() == ""
    learner.close()
    return report.readings, seen


def _applied(outcome: Outcome, tokens: MicroBatch):
    """The weights as the loss's formula has them, worked out from its correction."""
    correction = outcome.correction
    return correction.weight * (tokens.mask & ~correction.masked & ~correction.rejected)


def with_greedy(batch: Batch, episodes: Episodes, greedy: Collection[SampleName]) -> tuple[Batch, Episodes]:
    """The same batch, with the episodes that ``greedy`` names sampled at temperature 0."""
    sampled_so = {
        name: msgspec.structs.replace(episode, sampling=msgspec.structs.replace(episode.sampling, temperature=0.0))
        for name, episode in episodes.items()
        if name in greedy
    }
    return changed(batch, lambda each: {"greedy": each.name in greedy}), {**episodes, **sampled_so}
