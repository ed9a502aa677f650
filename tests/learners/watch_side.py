"""What ranks do that are looked at while they train; forked from a server that has imported this."""

from collections.abc import Mapping
from pathlib import Path

import torch
from rank_side import Episodes, PlainShard, new_learner, plain_shards

from asyncrl.core.batch import Batch, RowName
from asyncrl.core.measures.metrics import combine
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.algorithm.losses import Outcome
from asyncrl.learners.batches.micro_batch import MicroBatch
from asyncrl.learners.rank import RankSpec


class Watch:
    """Keeps the norms of each optimizer step, and takes derivatives of the loss as a hook might."""

    def __init__(self) -> None:
        self.norms: list[Mapping[RowName, float]] = []
        self.seen: list[RowName] = []

    def rows(self, norms: Mapping[RowName, float]) -> None:
        self.norms.append(norms)

    def micro_batch(self, batch: MicroBatch, logp: torch.Tensor, outcome: Outcome) -> None:
        self.seen += batch.names
        (pull,) = torch.autograd.grad(outcome.loss, logp, retain_graph=True)
        assert pull.shape == batch.targets.shape


def watched(
    spec: RankSpec, recipe: Recipe, folder: Path, batch: Batch, episodes: Episodes, look: bool
) -> tuple[Watch, dict[str, float], list[PlainShard]]:
    """One step, looked at or not: what was seen, the readings, and the weights it made."""
    learner = new_learner(spec, recipe, folder)
    watch = Watch()
    report = learner.step(batch, episodes, watch=watch if look else None)
    shards = plain_shards(learner)
    learner.close()
    return watch, combine(report.readings), shards
