"""The learner on one rank: trains a batch of trajectories into the next policy version, and gives its weights as
shards.

What always holds: a training step is a function of the batch, the rows and the weights alone; how the batch is divided
over micro-batches and ranks changes neither the loss nor, up to rounding, the new weights.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from asyncrl.core.batch import Batch, RowName, SampleName
from asyncrl.core.episode import Episode
from asyncrl.core.ids import GroupId, PolicyVersion
from asyncrl.core.measures.metrics import Reading
from asyncrl.core.measures.time_split import LearnerTime
from asyncrl.core.process.long_import import long_import
from asyncrl.core.publication import Shard
from asyncrl.core.recipe.advantage import GaeAdvantageConfig
from asyncrl.core.recipe.algorithm import AdaptiveKlConfig, AlgorithmConfig, NoKlConfig
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.schema import DeadlinesConfig
from asyncrl.learners import metrics
from asyncrl.learners.algorithm.kl import adapted_coefficient
from asyncrl.learners.algorithm.losses import policy_loss
from asyncrl.learners.algorithm.overlong import overlong_penalties
from asyncrl.learners.algorithm.teacher import with_teacher
from asyncrl.learners.algorithm.value_loss import value_loss
from asyncrl.learners.batches.metric_tallies import Tally
from asyncrl.learners.batches.micro_batch import MicroBatch, unsampled
from asyncrl.learners.batches.mini_batches import order
from asyncrl.learners.batches.observations import observe, observe_critic, off_policy_steps, over_steps, readings_of
from asyncrl.learners.batches.single_row import single_row
from asyncrl.learners.batches.token_records import TokenRecords
from asyncrl.learners.checkpointing.checkpoint_manifest import Progress
from asyncrl.learners.learning_rate import learning_rate
from asyncrl.learners.megatron.cpu import compat
from asyncrl.learners.preparation import MiniBatch, Preparation
from asyncrl.learners.rank import RankSpec
from asyncrl.learners.step_report import StepReport
from asyncrl.learners.step_watch import StepWatch

if TYPE_CHECKING:
    from asyncrl.learners.megatron.layers.log_probabilities import Predictions
    from asyncrl.learners.megatron.state.checkpoint import Saving
    from asyncrl.learners.megatron.trainer import MicroBatchLoss


@dataclass
class _Taken:
    """What the optimizer steps on a batch have brought so far.

    Attributes:
        tallies: of each step, on ranks that count.
        norms, critic_norms: gradient norms.
        moved: whether the optimizer moved weights of this rank.
    """

    tallies: list[Tally] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    critic_norms: list[float] = field(default_factory=list)
    moved: bool = False


class Learner:
    """One rank of the learner. Construction, :meth:`step`, :meth:`save_pretrained` and all checkpoint methods are
    collective: all ranks make the same calls in the same order, each from one thread. ``deadlines`` bounds every wait
    for another rank.

    Attributes:
        version: policy version of the weights.
        preparation: prepares each batch for its optimizer steps.

    Args:
        algorithm: the mathematics of the update.
        config: the model's data type, the parallel layout and the optimizer.
        deadlines: bound the wait for other ranks, at the start and in each training step.
        temperature: temperature at which tokens are sampled.
        steps: training steps of the run, over which the learning rate decays.
        seed: the run's seed.
        model_path: Hugging Face folder whose weights are version 0.
        rank: the place of this rank; its layout must be that of ``config``.

    Raises:
        RecipeError: if the model is not supported or cannot be divided as asked.
        DeadlineExceeded: if another rank does not come up in time.
        ValueError: if the layout of ``rank`` is not that of ``config``.
    """

    def __init__(
        self,
        algorithm: AlgorithmConfig,
        config: LearnerConfig,
        deadlines: DeadlinesConfig,
        *,
        temperature: float,
        steps: int,
        seed: int,
        model_path: Path,
        rank: RankSpec,
    ) -> None:
        if rank.layout != config.layout:
            raise ValueError(f"rank {rank.rank} is of the layout {rank.layout}, but the recipe's is {config.layout}")
        self._algorithm, self._config, self._steps, self._rank = algorithm, config, steps, rank
        # A late import: install() must run first, and importing this module must not change the process.
        with long_import():
            compat.install()
            from asyncrl.learners.megatron.trainer import Trainer

        self._trainer = Trainer(
            algorithm, config, deadlines, temperature=temperature, seed=seed, model_path=model_path, spec=rank
        )
        self.preparation = Preparation(algorithm, config, temperature, rank, self._trainer)
        self._kl_coefficient = 0.0 if isinstance(algorithm.kl, NoKlConfig) else algorithm.kl.coefficient
        self._saving: Saving | None = None
        self.version = PolicyVersion(0)

    def rows_needed(self, batch: Batch) -> list[RowName]:
        """Group, sample index and part of the rows that this rank's data-parallel slice trains.

        All ranks of a slice get the same answer. Each row belongs to exactly one slice.

        Raises:
            RecipeError: if a row is longer than ``learner.micro_batch_tokens``.
        """
        return self.preparation.rows_needed(batch)

    def step(
        self,
        batch: Batch,
        episodes: Mapping[SampleName, Episode],
        records: TokenRecords | None = None,
        watch: StepWatch | None = None,
    ) -> StepReport:
        """Train ``batch.version`` into the next version by ``algorithm.epochs`` times ``algorithm.minibatches``
        optimizer steps.

        The proximal policy, which the optimizer steps must stay close to, is the policy before the first of them. With
        one optimizer step, its log-probabilities are those of the forward pass itself, without gradient. With several,
        they are computed in advance, in a forward pass over the batch, if the correction needs them.

        Args:
            batch: the same on all ranks.
            episodes: at least those with the rows of :meth:`rows_needed`.
            records: gets what the loss makes of each token, on ranks of the last pipeline stage; None if nobody wants to know.
            watch: looks at the step; None if nobody does. For it, each row's gradient is computed once more, alone.

        Raises:
            ValueError: if an episode is missing or does not match its record in the batch, or no token of the batch may
                enter the loss.
            TrainingDiverged: on all ranks, if the gradient norm is not finite; the weights are then those before the
                optimizer step that would have used it.
            DeadlineExceeded: if another rank does not take part in time.
            ComponentFailed: if another rank has died.
        """
        started, cpu_before, flops_before = time.perf_counter(), time.process_time(), self._trainer.flops
        self._trainer.clock.begin()
        algorithm = self._algorithm
        if not any(row.loss_tokens for row in batch.rows):
            raise ValueError(f"no token of the {len(batch.rows)} rows in the batch of version {batch.version} may enter the loss")
        rate = learning_rate(batch.version, self._steps, self._config)
        parts = self.preparation.mini_batches(batch, episodes, self._kl_coefficient)
        taken = _Taken()
        for number in order(batch, len(parts), algorithm.epochs):
            if parts[number].denominator:
                self._optimizer_step(parts[number], rate, batch.version, taken, records, watch)
        self.version = PolicyVersion(batch.version + 1)
        whole = over_steps(taken.tallies, algorithm.epochs) if taken.tallies else None
        coefficient = self._kl_coefficient
        self._adapt_kl(whole)
        seconds = time.perf_counter() - started
        computed = sum(micro_batch.computed_tokens for part in parts for micro_batch in part.micro_batches)
        work = torch.tensor([self._trainer.flops - flops_before, computed], dtype=torch.float64)
        flops, computed = self._trainer.added_over_data(work).tolist()
        readings = []
        if whole is not None:
            readings = [
                *readings_of(whole),
                Reading(metrics.LEARNING_RATE, rate),
                Reading(metrics.TOKENS_COMPUTED, computed),
                Reading(metrics.STEP_SECONDS, seconds),
                *self._speed(flops / seconds / self._rank.layout.ranks),
                *self._readings_beside_the_loss(batch, taken, coefficient),
            ]
        spent, cpu = self._trainer.clock.end(), LearnerTime(cpu=time.process_time() - cpu_before)
        if not self._rank.is_reporter:
            return StepReport(readings, weights_moved=taken.moved, time=cpu)
        return StepReport(readings, weights_moved=taken.moved, time=cpu + spent, hardware=self._trainer.hardware)

    def _optimizer_step(
        self,
        part: MiniBatch,
        rate: float,
        version: PolicyVersion,
        taken: _Taken,
        records: TokenRecords | None,
        watch: StepWatch | None,
    ) -> None:
        """Take one optimizer step of the policy, unless only the critic is trained yet, and one of the critic if there is one."""
        if watch is not None:
            watch.rows(self._row_gradients(part))
        advantage = self._algorithm.advantage
        micro_batches, loss = part.micro_batches, self._loss(part, len(taken.norms), records, watch)
        tally: Tally = {}
        if isinstance(advantage, GaeAdvantageConfig):
            critic = self._trainer.critic_step(micro_batches, self._critic_loss(part, advantage), advantage.critic_lr, version)
            taken.critic_norms.append(critic.grad_norm)
            tally |= critic.tally or {}
        trained = (
            self._trainer.forward_only(micro_batches, loss)
            if self._only_critic(version)
            else self._trainer.step(micro_batches, loss, rate, version)
        )
        taken.norms.append(trained.grad_norm)
        taken.moved |= trained.moved
        if trained.tally is not None:
            taken.tallies.append(tally | trained.tally)

    def _readings_beside_the_loss(self, batch: Batch, taken: _Taken, kl_coefficient: float) -> Iterator[Reading]:
        algorithm = self._algorithm
        yield Reading(metrics.GRAD_NORM, fmean(taken.norms))
        if not isinstance(algorithm.kl, NoKlConfig):
            yield Reading(metrics.KL_COEFFICIENT, kl_coefficient)
        if algorithm.overlong is not None:
            longest = [max(each.length for each in episode.trajectories) for episode in batch.trained]
            lost = overlong_penalties(torch.tensor(longest), algorithm.overlong)
            yield Reading(metrics.OVERLONG_PENALTY, lost.mean().item())
        if taken.critic_norms:
            yield Reading(metrics.CRITIC_GRAD_NORM, fmean(taken.critic_norms))

    def log_probabilities(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray] | None:
        """Compute the log-probability of every token of ``rows`` but the first of each, with the weights as they are now.

        Collective. Nothing is trained.

        Args:
            rows: token ids, at least 2 in each row; the same on all ranks of a data-parallel slice.

        Returns:
            For each row float32 [T - 1], in nats at temperature 1; None on all pipeline stages but the last.
        """
        found = self._trainer.log_probabilities_of(rows)
        return None if found is None else [each.numpy() for each in found]

    def shards(self) -> Iterator[Shard]:
        """Yield the rectangles of tensors that this rank publishes, with the weights as they are now.

        They are tensors of Hugging Face's model or, if ``learner.lora`` says so, the adapters alone under PEFT's names.

        Not collective: nothing is gathered. The shards of all ranks cover every tensor exactly once. Read each shard
        before the next training step, because it may be a view of the weights.

        On a GPU that is shared with an engine, memory that torch keeps for later is given back first: the engine needs more
        than its share while it loads the weights.
        """
        if self._config.gpu == "shared":
            torch.cuda.empty_cache()
        return self._trainer.published_shards()

    def save_pretrained(self, folder: Path) -> None:
        """Write the weights, configuration and tokenizer as a Hugging Face folder. It appears whole or not at all.

        Raises:
            FileExistsError: on all ranks, if ``folder`` exists.
        """
        self._trainer.save_pretrained(folder)

    def start_checkpoint(self, folder: Path) -> None:
        """Start a checkpoint of the state as it is now. It is written while training continues, and is complete only
        after :meth:`finish_checkpoint` has returned.

        Args:
            folder: path of the new checkpoint, on a disk that all ranks reach. Unfinished checkpoints beside it are
                removed.

        Raises:
            CheckpointNotWritten: on all ranks, if ``folder`` exists or the disk refuses to write; training can
                continue.
            RuntimeError: if the checkpoint that was started before has not been finished.
        """
        if self._saving is not None:
            raise RuntimeError(f"cannot start checkpoint {folder}: the last one is not finished; call finish_checkpoint() first")
        self._saving = self._trainer.start_checkpoint(folder, Progress(self.version, self._kl_coefficient or None))

    def finish_checkpoint(self) -> None:
        """Wait until the checkpoint that was started is complete on disk.

        Raises:
            CheckpointNotWritten: as :meth:`start_checkpoint`.
            DeadlineExceeded: on all ranks, if writing takes longer than ``deadlines.step``.
            RuntimeError: if no checkpoint was started.
        """
        if self._saving is None:
            raise RuntimeError("there is no checkpoint to finish; call start_checkpoint() first")
        saving, self._saving = self._saving, None
        self._trainer.finish_checkpoint(saving)

    def load_checkpoint(self, folder: Path) -> PolicyVersion:
        """Load the state of a checkpoint. Ranks in any layout may have written it.

        From the same checkpoint in the same layout, the same batches give the same weights, to the bit.

        Returns:
            The policy version of the weights.

        Raises:
            CheckpointDamaged: on all ranks, before anything has changed, if a file is missing or is not what was
                written, or if its version is not that of the folder's name.
            UnknownClass: on all ranks, before anything has changed, if a file names a class that asyncrl never writes
                into a checkpoint.
            CheckpointMismatch: on all ranks, before anything has changed, if the checkpoint is of another model.
        """
        progress = self._trainer.load_checkpoint(folder)
        self.version = progress.version
        kl = self._algorithm.kl
        if not isinstance(kl, NoKlConfig) and isinstance(kl.control, AdaptiveKlConfig) and progress.kl_coefficient is not None:
            self._kl_coefficient = progress.kl_coefficient
        return self.version

    def close(self) -> None:
        """Leave the process group of the ranks. Call it once, last."""
        self._trainer.close()

    def _row_gradients(self, part: MiniBatch) -> dict[RowName, float]:
        """The norm of each row's gradient, alone; of the rows of all slices. Collective: one slice's row after the other's."""
        trainer, layout, mine = self._trainer, self._rank.layout, self._rank.data_rank
        rows = [(each, row) for each in part.micro_batches for row in range(each.rows.count)]
        counts = [int(count) for count in trainer.gathered_over_data(torch.tensor([len(rows)]))]
        names = [each.names[row] for each, row in rows]
        padded = torch.tensor([*names, *[(-1, -1, -1)] * (max(counts) - len(names))], dtype=torch.int64).reshape(-1, 3)
        named = trainer.gathered_over_data(padded).reshape(layout.data, -1, 3).tolist()
        loss, norms = self._loss(part, 0, None, None), {}
        for data_rank, count in enumerate(counts):
            for number in range(count):
                own = data_rank == mine
                one = single_row(*rows[number], trainer.multiple) if own else unsampled([], trainer.multiple)
                group, sample, its_part = named[data_rank][number]
                norms[GroupId(group), sample, its_part] = trainer.gradient_norm(trainer.filled_up(one), loss)
        return norms

    def _loss(self, part: MiniBatch, taken: int, records: TokenRecords | None, watch: StepWatch | None) -> "MicroBatchLoss":
        """The loss of a mini-batch in the optimizer step that follows ``taken`` earlier ones on the same batch."""
        algorithm, coefficient = self._algorithm, self._kl_coefficient

        def loss(micro_batch: MicroBatch, seen: "Predictions") -> tuple[Tensor, Tally]:
            logp, entropy = seen
            micro_batch = with_teacher(micro_batch, logp, algorithm.teacher)
            proximal = logp.detach() if micro_batch.logp_proximal is None else micro_batch.logp_proximal
            outcome = policy_loss(logp, proximal, entropy, micro_batch, algorithm, part.denominator, coefficient)
            tally = observe(micro_batch, proximal, entropy.detach(), outcome, algorithm.correction)
            tally |= off_policy_steps(micro_batch, algorithm.optimizer_steps, taken)
            if records is not None:
                records.see(micro_batch, logp, outcome)
            if watch is not None:
                watch.micro_batch(micro_batch, logp, outcome)
            return outcome.loss, tally

        return loss

    def _critic_loss(self, part: MiniBatch, config: GaeAdvantageConfig) -> "MicroBatchLoss":
        def loss(micro_batch: MicroBatch, values: Tensor) -> tuple[Tensor, Tally]:
            before, returns = micro_batch.values, micro_batch.returns
            assert before is not None
            assert returns is not None
            mask, share = micro_batch.mask, micro_batch.share
            outcome = value_loss(values, before, returns, mask, share, config.value_clip, part.denominator)
            return outcome.loss, observe_critic(micro_batch, outcome)

        return loss

    def _speed(self, flops_per_s: float) -> Iterator[Reading]:
        """Readings of how much a rank computes per second."""
        yield Reading(metrics.TFLOPS_PER_RANK, flops_per_s / 1e12)
        if self._trainer.peak_flops is not None:
            yield Reading(metrics.MFU, flops_per_s / self._trainer.peak_flops)

    def _only_critic(self, version: int) -> bool:
        advantage = self._algorithm.advantage
        return isinstance(advantage, GaeAdvantageConfig) and version < advantage.critic_warmup_steps

    def _adapt_kl(self, tally: Tally | None) -> None:
        """Adapt the coefficient on all ranks to the divergence that the reporting rank measured."""
        kl = self._algorithm.kl
        if isinstance(kl, NoKlConfig) or not isinstance(kl.control, AdaptiveKlConfig):
            return
        total, tokens = (0.0, 0.0) if tally is None else tally[metrics.KL_REFERENCE].tolist()
        # A batch all of whose tokens were left out says nothing about the divergence.
        observed = self._trainer.agreed(total / tokens if tokens else kl.control.target)
        self._kl_coefficient = adapted_coefficient(self._kl_coefficient, observed, kl.control.target, kl.control.horizon)
