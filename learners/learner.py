"""The learner on one rank: from a batch of trajectories to one optimizer step, and from its weights to shards.

What always holds: the step is a function of the batch, the rows and the weights alone; how the batch is divided over
micro-batches and ranks changes neither the loss nor, up to rounding, the new weights.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from asyncrl.core.batch import Batch
from asyncrl.core.ids import GroupId, PolicyVersion
from asyncrl.core.metrics import Reading
from asyncrl.core.publication import Shard
from asyncrl.core.recipe.algorithm import ClipCovLoss, KlCovLoss
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.trajectory import Trajectory
from learners import metrics
from learners.aggregation import denominator, row_shares
from learners.covariance import draws, single_out
from learners.losses import policy_loss
from learners.megatron import cpu_compat
from learners.micro_batch import MicroBatch, pack
from learners.observations import observe, readings_of
from learners.packing import plan
from learners.rank import RankSpec
from learners.rating import rate
from learners.schedule import learning_rate
from learners.tally import Tally

if TYPE_CHECKING:
    from learners.megatron.checkpoint import Saving


class StepReport(msgspec.Struct, frozen=True):
    """What one optimizer step did.

    Attributes:
        readings: of the whole batch, on one rank of the run; empty on all others, so that combining all ranks' readings gives the
            global values.
        seconds: wall time on this rank.
        tokens_trained: sampled tokens in the loss of the whole batch.
    """

    readings: list[Reading]
    seconds: float
    tokens_trained: int


class Learner:
    """One rank. Construction, :meth:`step`, :meth:`save_pretrained` and all that has to do with checkpoints are collective: all
    ranks make the same calls in the same order, each from one thread. Every wait for another rank is bounded by
    ``recipe.deadlines``.

    Attributes:
        version: the policy version that the weights are.

    Args:
        recipe: of the run.
        model_path: Hugging Face folder whose weights are version 0.
        rank: where this rank stands; its grid must be the recipe's.

    Raises:
        RecipeError: if the model is not supported or cannot be divided as asked.
        DeadlineExceeded: if another rank does not come up.
    """

    def __init__(self, recipe: Recipe, model_path: str, rank: RankSpec) -> None:
        asked = (recipe.learner.tensor_parallel, recipe.learner.pipeline_parallel, recipe.learner.data_parallel)
        if (rank.tensor, rank.pipeline, rank.data) != asked:
            raise ValueError(
                f"rank {rank.rank} is of a {rank.tensor} x {rank.pipeline} x {rank.data} grid, the recipe's is {asked}"
            )
        self._recipe, self._rank = recipe, rank
        # Imported here because installing must come first, and because importing the learner must not change the process.
        cpu_compat.install()
        from learners.megatron.trainer import Trainer

        self._trainer = Trainer(recipe, Path(model_path), rank)
        self._saving: Saving | None = None
        self.version = PolicyVersion(0)

    def rows_needed(self, batch: Batch) -> list[tuple[GroupId, int]]:
        """Group and sample index of the rows that this rank's data-parallel slice trains.

        All ranks of a slice get the same answer, and the slices together have every row once.

        Raises:
            RecipeError: if a row is longer than ``learner.micro_batch_tokens``.
        """
        wanted = [row for micro_batch in self._micro_batch_rows(batch) for row in micro_batch]
        return [(batch.rows[row].group_id, batch.rows[row].sample_index) for row in wanted]

    def step(self, batch: Batch, rows: Mapping[tuple[GroupId, int], Trajectory]) -> StepReport:
        """Train ``batch.version`` into the next version by one optimizer step over the batch.

        With one step a batch the proximal policy, the one the step must stay near, is exactly the policy before the step. Its
        log-probabilities are those of the forward pass itself, without gradient: no second forward pass is needed.

        Args:
            batch: the same on all ranks.
            rows: the payload of at least :meth:`rows_needed`.

        Raises:
            ValueError: if a row is missing or is not what the batch says of it, or no token of the batch may enter the loss.
            TrainingDiverged: on all ranks, if the gradient is not finite; the weights are then those before the step.
            DeadlineExceeded: if another rank does not take part in time.
            ComponentFailed: if another rank has died.
        """
        started = time.perf_counter()
        tokens = sum(row.loss_tokens for row in batch.rows)
        if not tokens:
            raise ValueError(f"no token of the {len(batch.rows)} rows for version {batch.version} may enter the loss")
        rate = learning_rate(batch.version, self._recipe.steps, self._recipe.learner)
        micro_batches = self._with_singled_out(batch, self._packed(batch, rows))
        trained = self._trainer.step(micro_batches, self._loss(batch), rate, batch.version)
        self.version = PolicyVersion(batch.version + 1)
        seconds = time.perf_counter() - started
        readings = []
        if trained.tally is not None:
            readings = [
                *readings_of(trained.tally, _staleness_bound(batch)),
                Reading(metrics.GRAD_NORM, trained.grad_norm),
                Reading(metrics.LEARNING_RATE, rate),
                Reading(metrics.STEP_SECONDS, seconds),
            ]
        return StepReport(readings, seconds, tokens)

    def shards(self) -> Iterator[Shard]:
        """The rectangles of Hugging Face tensors that this rank publishes, of the weights as they are now.

        Not collective. Nothing is gathered; the shards of all ranks cover every tensor exactly once. Read each before the next
        step: it may be a view of the weights.
        """
        return self._trainer.shards()

    def save_pretrained(self, folder: str) -> None:
        """Write the weights, configuration and tokenizer as a Hugging Face folder, whole or not at all.

        Raises:
            FileExistsError: on all ranks, if ``folder`` exists.
        """
        self._trainer.save_pretrained(Path(folder))

    def save_checkpoint(self, folder: Path) -> None:
        """Write all that training goes on from, as of now, and return when it is complete.

        Raises:
            CheckpointNotWritten: on all ranks, if ``folder`` exists or the disk refuses; training can go on.
        """
        self.start_checkpoint(folder)
        self.finish_checkpoint()

    def start_checkpoint(self, folder: Path) -> None:
        """Begin a checkpoint of the state as it is now. It is written while training goes on, and is not there before
        :meth:`finish_checkpoint` has returned.

        Args:
            folder: where it will be, on a disk that all ranks reach; what unfinished checkpoints have left beside it is removed.

        Raises:
            CheckpointNotWritten: as :meth:`save_checkpoint`.
        """
        if self._saving is not None:
            raise RuntimeError(f"a checkpoint was started before the last one was finished: {folder}")
        self._saving = self._trainer.start_checkpoint(folder, self.version)

    def finish_checkpoint(self) -> None:
        """Return when the checkpoint that was started is complete on disk.

        Raises:
            CheckpointNotWritten: as :meth:`save_checkpoint`.
            DeadlineExceeded: on all ranks, if it takes longer than ``deadlines.step``.
        """
        if self._saving is None:
            raise RuntimeError("no checkpoint was started")
        saving, self._saving = self._saving, None
        self._trainer.finish_checkpoint(saving)

    def load_checkpoint(self, folder: Path) -> PolicyVersion:
        """Take the state that :meth:`save_checkpoint` wrote, by this many ranks or another number in any layout.

        From the same checkpoint in the same layout, the same batches give the same weights, to the bit.

        Returns:
            The version the weights now are.

        Raises:
            CheckpointDamaged: on all ranks, before anything has changed, if a file is missing or not what was written.
            CheckpointMismatch: on all ranks, before anything has changed, if it is of another model.
        """
        self.version = self._trainer.load_checkpoint(folder)
        return self.version

    def close(self) -> None:
        """Leave the group of ranks; call it once, last."""
        self._trainer.close()

    def _micro_batch_rows(self, batch: Batch) -> list[list[int]]:
        planned = plan(batch, self._rank.data, self._recipe.learner.micro_batch_tokens)[self._rank.data_rank]
        # The interleaved schedule goes round its stages with a micro-batch for each; empty ones fill the last round.
        stages = self._rank.pipeline if self._recipe.learner.virtual_pipeline > 1 else 1
        return planned + [[] for _ in range(-len(planned) % stages)]

    def _packed(self, batch: Batch, rows: Mapping[tuple[GroupId, int], Trajectory]) -> list[MicroBatch]:
        algorithm = self._recipe.algorithm
        advantages = rate(batch, algorithm)
        weights = torch.tensor([row.weight for row in batch.rows], dtype=torch.float64)
        shares = (weights * row_shares(_loss_tokens(batch), algorithm.aggregation)).tolist()
        packed = []
        for micro_batch in self._micro_batch_rows(batch):
            records = [batch.rows[row] for row in micro_batch]
            names = [(record.group_id, record.sample_index) for record in records]
            missing = [name for name in names if name not in rows]
            if missing:
                raise ValueError(f"rows {missing} of version {batch.version} are missing; fetch all of rows_needed()")
            packed.append(
                pack(
                    records,
                    [rows[name] for name in names],
                    [advantages[row] for row in micro_batch],
                    [shares[row] for row in micro_batch],
                    batch=batch,
                    sampling=self._recipe.sampling,
                    multiple=self._rank.tensor,
                )
            )
        return packed

    def _with_singled_out(self, batch: Batch, packed: list[MicroBatch]) -> list[MicroBatch]:
        """The same, with the tokens marked that a covariance loss treats apart."""
        config = self._recipe.algorithm.loss
        if not isinstance(config, ClipCovLoss | KlCovLoss):
            return packed
        singled_out = single_out(
            torch.cat([part.logp_behaviour for part in packed]),
            torch.cat([part.advantages for part in packed]),
            torch.cat([part.mask for part in packed]),
            draws(batch, self._micro_batch_rows(batch), packed),
            config,
            add=self._trainer.added_over_data,
            gather=self._trainer.gathered_over_data,
        )
        marks = singled_out.split([len(part.mask) for part in packed])
        return [msgspec.structs.replace(part, singled_out=mark) for part, mark in zip(packed, marks, strict=True)]

    def _loss(self, batch: Batch) -> Callable[[MicroBatch, Tensor, Tensor], tuple[Tensor, Tally]]:
        algorithm = self._recipe.algorithm
        divisor = denominator(_loss_tokens(batch), algorithm.aggregation)

        def loss(part: MicroBatch, logp: Tensor, entropy: Tensor) -> tuple[Tensor, Tally]:
            outcome = policy_loss(logp, logp.detach(), entropy, part.loss_tokens(), algorithm, divisor)
            return outcome.loss, observe(part, logp.detach(), entropy.detach(), outcome)

        return loss


def _loss_tokens(batch: Batch) -> Tensor:
    return torch.tensor([row.loss_tokens for row in batch.rows])


def _staleness_bound(batch: Batch) -> int:
    return batch.version - batch.oldest_version
