"""Prepares a batch for its optimizer steps: micro-batches, log-probabilities under other policies, advantages.

What always holds: the result is complete before the first optimizer step. It depends only on the batch, its rows, the
weights before that step and the coefficient of the divergence.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import torch
from torch import Tensor

from asyncrl.core.batch import Batch, BatchRow, RowName, SampleName
from asyncrl.core.episode import Episode
from asyncrl.core.recipe.advantage import GaeAdvantageConfig
from asyncrl.core.recipe.algorithm import AlgorithmConfig, EpisodeCreditConfig, KlInRewardConfig, NoKlConfig
from asyncrl.core.recipe.correction import NormalizedBoundConfig, RejectSecondMomentConfig
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.loss import ClipCovLossConfig, KlCovLossConfig
from asyncrl.learners.algorithm.aggregation import Sequences, denominator, shares
from asyncrl.learners.algorithm.batch_correction import mean_weight, second_moment_outliers
from asyncrl.learners.algorithm.corrections import correct
from asyncrl.learners.algorithm.covariance import draws, single_out
from asyncrl.learners.algorithm.kl import divergence
from asyncrl.learners.algorithm.row_advantages import (
    compared,
    row_advantages,
    with_overlong_penalty,
    with_penalties,
    with_turn_penalties,
)
from asyncrl.learners.algorithm.teacher import with_teacher
from asyncrl.learners.algorithm.token_credit import normalised, token_credit
from asyncrl.learners.batches.micro_batch import MicroBatch, check_sampling, pack, trajectory_of
from asyncrl.learners.batches.mini_batches import mini_batches
from asyncrl.learners.batches.packing import plan, token_multiple
from asyncrl.learners.batches.prefixes import families
from asyncrl.learners.batches.teacher_log_probabilities import with_teachers
from asyncrl.learners.rank import RankSpec

if TYPE_CHECKING:
    from asyncrl.learners.megatron.trainer import Trainer


class MiniBatch(NamedTuple):
    """What one optimizer step trains, as far as it belongs to this data-parallel slice.

    Attributes:
        micro_batches: equally many on every slice.
        denominator: divides the loss of the whole mini-batch, see ``aggregation.denominator``; 0 if no
            token of the mini-batch is in the loss.
    """

    micro_batches: list[MicroBatch]
    denominator: float


class Preparation:
    """Prepares batches on one rank. :meth:`mini_batches` is collective.

    Attributes:
        shares_prefixes: whether a prefix that rows of a group have in common is computed once in a micro-batch.
            Context-parallel ranks divide each row among them, and do not share prefixes.

    Args:
        algorithm: the mathematics of the update.
        config: says how many tokens a micro-batch may have, and whether products are in fp8.
        temperature: temperature at which tokens are sampled.
        rank: the place of this rank.
        trainer: computes log-probabilities and values, and sums over the data-parallel ranks.
    """

    def __init__(
        self, algorithm: AlgorithmConfig, config: LearnerConfig, temperature: float, rank: RankSpec, trainer: "Trainer"
    ) -> None:
        self._algorithm, self._config, self._temperature = algorithm, config, temperature
        self._rank, self._trainer = rank, trainer
        self.shares_prefixes = rank.layout.context == 1

    def rows_needed(self, batch: Batch) -> list[RowName]:
        """Names of the rows that this data-parallel slice trains.

        Raises:
            RecipeError: if a row is longer than ``learner.micro_batch_tokens``.
        """
        return [
            part.rows[row].name
            for part in mini_batches(batch, self._algorithm.minibatches)
            for micro_batch in self._planned(part)
            for row in micro_batch
        ]

    def mini_batches(self, batch: Batch, episodes: Mapping[SampleName, Episode], kl_coefficient: float) -> list[MiniBatch]:
        """Prepare the mini-batch of each optimizer step. Advantages compare the episodes of the whole batch.

        Args:
            batch: the batch.
            episodes: at least those with the rows of :meth:`rows_needed`.
            kl_coefficient: multiplies the divergence from the reference where that is subtracted from the reward.

        Raises:
            ValueError: if an episode is missing or does not match its record in the batch.
        """
        algorithm = self._algorithm
        parts = mini_batches(batch, algorithm.minibatches)
        if algorithm.overlong is not None:
            batch = with_overlong_penalty(batch, algorithm.overlong, algorithm.credit)
        with_critic = isinstance(algorithm.advantage, GaeAdvantageConfig)
        advantages = _by_name(batch, [[0.0] for _ in batch.rows] if with_critic else row_advantages(batch, algorithm))
        packed = [self._with_policies(self._packed(part, episodes, advantages)) for part in parts]
        if with_critic:
            packed = self._valued(mini_batches(batch, algorithm.minibatches), packed, kl_coefficient)
        elif isinstance(algorithm.kl, KlInRewardConfig) and self._trainer.on_last_stage:
            packed = self._rated_less_divergence(batch, parts, packed, kl_coefficient)
        prepared = []
        for part, micro_batches in zip(parts, packed, strict=True):
            divisor = denominator(Sequences.of(part.rows, algorithm.aggregation), algorithm.aggregation)
            if divisor:
                micro_batches = self._with_batch_correction(self._with_singled_out(part, micro_batches))
            prepared.append(MiniBatch(micro_batches, divisor))
        return prepared

    def _planned(self, batch: Batch) -> list[list[int]]:
        ranks = plan(batch, self._rank.layout.data, self._config.micro_batch_tokens, share_prefixes=self.shares_prefixes)
        planned = ranks[self._rank.data_rank]
        # The interleaved schedule needs a multiple of ``stages`` micro-batches; empty ones make up the number.
        stages = self._rank.layout.pipeline if self._rank.layout.virtual_pipeline > 1 else 1
        return planned + [[] for _ in range(-len(planned) % stages)]

    def _packed(
        self, batch: Batch, episodes: Mapping[SampleName, Episode], advantages: Mapping[RowName, Sequence[float]]
    ) -> list[MicroBatch]:
        sequences = Sequences.of(batch.rows, self._algorithm.aggregation)
        factors = (sequences.weights * shares(sequences, self._algorithm.aggregation))[sequences.of_rows].tolist()
        alike = families(batch.rows) if self.shares_prefixes else []
        family_of = {batch.rows[row].name: number for number, family in enumerate(alike) for row in family}
        packed = []
        for micro_batch in self._planned(batch):
            records = [batch.rows[row] for row in micro_batch]
            missing = [record.name[:2] for record in records if record.name[:2] not in episodes]
            if missing:
                raise ValueError(
                    f"episodes {missing} (group, sample) of version {batch.version} are missing; fetch those of all rows_needed()"
                )
            for record in records:
                check_sampling(episodes[record.name[:2]], self._temperature, self._algorithm.uses_behaviour)
            rows = [trajectory_of(record, episodes[record.name[:2]]) for record in records]
            made = pack(
                records,
                rows,
                [advantages[record.name] for record in records],
                [factors[row] for row in micro_batch],
                batch=batch,
                multiple=token_multiple(self._config),
                families=family_of,
                routing=self._trainer.routing,
            )
            packed.append(made if self._algorithm.teacher is None else with_teachers(made, records, rows))
        return packed

    def _with_policies(self, packed: list[MicroBatch]) -> list[MicroBatch]:
        """Add the log-probabilities under other policies that the optimizer steps need and cannot compute
        themselves."""
        algorithm = self._algorithm
        in_correction = algorithm.correction.anchor == "proximal_recomputed" or algorithm.correction.reject
        of_batch = algorithm.correction.looks_at_whole_batch or isinstance(algorithm.kl, KlInRewardConfig)
        if of_batch or (algorithm.optimizer_steps > 1 and in_correction):
            proximal = self._trainer.log_probabilities(packed)
            packed = [msgspec.structs.replace(part, logp_proximal=logp) for part, logp in zip(packed, proximal, strict=True)]
        if not isinstance(algorithm.kl, NoKlConfig):
            reference = self._trainer.reference_log_probabilities(packed)
            packed = [msgspec.structs.replace(part, logp_reference=logp) for part, logp in zip(packed, reference, strict=True)]
        return packed

    def _valued(self, parts: list[Batch], packed: list[list[MicroBatch]], kl_coefficient: float) -> list[list[MicroBatch]]:
        """Add the critic's values, and the returns and advantages computed from them."""
        algorithm = self._algorithm
        assert isinstance(algorithm.advantage, GaeAdvantageConfig)
        values = iter([value for micro_batches in packed for value in self._trainer.values(micro_batches)])
        if not self._trainer.on_last_stage:
            return packed
        valued = []
        for records, micro_batch in self._with_records(parts, packed):
            value = next(values)
            assert value is not None
            before = value.cpu()
            divergences = torch.zeros_like(before)
            if isinstance(algorithm.kl, KlInRewardConfig):
                assert micro_batch.logp_proximal is not None
                assert micro_batch.logp_reference is not None
                log_ratio = (micro_batch.logp_proximal - micro_batch.logp_reference).cpu()
                divergences = divergence(log_ratio, algorithm.kl.estimator)
            advantages, returns = token_credit(
                micro_batch, records, before, divergences, kl_coefficient, algorithm.advantage, algorithm.credit
            )
            valued.append(msgspec.structs.replace(micro_batch, values=before, returns=returns, advantages=advantages))
        normal = normalised(valued, self._trainer.added_over_data, self._trainer.gathered_over_data)
        remaining = iter(msgspec.structs.replace(one, advantages=of) for one, of in zip(valued, normal, strict=True))
        return [[next(remaining) for _ in micro_batches] for micro_batches in packed]

    def _rated_less_divergence(
        self, batch: Batch, parts: list[Batch], packed: list[list[MicroBatch]], coefficient: float
    ) -> list[list[MicroBatch]]:
        """Recompute the advantages from rewards that the divergence from the reference has been subtracted from: that of all rows
        with the reward together, or each turn's."""
        algorithm = self._algorithm
        assert isinstance(algorithm.kl, KlInRewardConfig)
        by_row = isinstance(algorithm.credit, EpisodeCreditConfig)
        counts = [1 if by_row else len(record.turn_rewards) for record in batch.rows]
        places = dict(zip([row.name for row in batch.rows], accumulate(counts, initial=0), strict=False))
        penalties = torch.zeros(sum(counts), dtype=torch.float64)
        for records, micro_batch in self._with_records(parts, packed):
            assert micro_batch.logp_proximal is not None
            assert micro_batch.logp_reference is not None
            tokens = divergence((micro_batch.logp_proximal - micro_batch.logp_reference).double().cpu(), algorithm.kl.estimator)
            sums = (micro_batch.rows if by_row else micro_batch.turns).sums(tokens)
            for record in records:
                place, count = places[record.name], 1 if by_row else len(record.turn_rewards)
                penalties[place : place + count], sums = sums[:count], sums[count:]
        of_units = (coefficient * self._trainer.added_over_data(penalties)).split(counts)
        of_rows = [units.tolist() for units in of_units]
        if by_row:
            penalised = with_penalties(batch, [sum(of_rows[row][0] for row in one.rows) for one in compared(batch)])
        else:
            penalised = with_turn_penalties(batch, of_rows)
        advantages = _by_name(batch, row_advantages(penalised, algorithm))
        rated = []
        for records, micro_batch in self._with_records(parts, packed):
            units = torch.tensor([one for record in records for one in advantages[record.name]])
            spread = units[(micro_batch.rows if by_row else micro_batch.turns).index]
            rated.append(msgspec.structs.replace(micro_batch, advantages=spread))
        remaining = iter(rated)
        return [[next(remaining) for _ in micro_batches] for micro_batches in packed]

    def _with_records(self, parts: list[Batch], packed: list[list[MicroBatch]]) -> Iterator[tuple[list[BatchRow], MicroBatch]]:
        for part, micro_batches in zip(parts, packed, strict=True):
            for numbers, micro_batch in zip(self._planned(part), micro_batches, strict=True):
                yield [part.rows[number] for number in numbers], micro_batch

    def _with_batch_correction(self, packed: list[MicroBatch]) -> list[MicroBatch]:
        """Add what the correction needs to know about the whole mini-batch."""
        correction = self._algorithm.correction
        if not correction.looks_at_whole_batch or not self._trainer.on_last_stage:
            return packed
        for criterion in correction.reject:
            if isinstance(criterion, RejectSecondMomentConfig):
                packed = self._with_outliers(packed, criterion)
        if isinstance(correction.bound, NormalizedBoundConfig):
            parts = []
            for part in packed:
                proximal = _proximal(part)
                parts.append((correct(proximal, proximal, part, correction).weight, part))
            mean = mean_weight(parts, correction.weight_level, self._trainer.added_over_data)
            packed = [msgspec.structs.replace(part, mean_weight=mean) for part in packed]
        return packed

    def _with_outliers(self, packed: list[MicroBatch], criterion: RejectSecondMomentConfig) -> list[MicroBatch]:
        """Mark the tokens that the criterion rejects, in addition to those already marked."""
        log_ratios = [_proximal(part) - part.logp_behaviour for part in packed]
        masks = [part.mask for part in packed]
        found = second_moment_outliers(torch.cat(log_ratios), torch.cat(masks), criterion.upper, self._trainer.gathered_over_data)
        marks = found.split([len(mask) for mask in masks])
        return [
            msgspec.structs.replace(part, outliers=mark if part.outliers is None else mark | part.outliers)
            for part, mark in zip(packed, marks, strict=True)
        ]

    def _with_singled_out(self, batch: Batch, packed: list[MicroBatch]) -> list[MicroBatch]:
        """Mark the tokens that a covariance loss treats differently."""
        config = self._algorithm.loss
        if not isinstance(config, ClipCovLossConfig | KlCovLossConfig):
            return packed
        singled_out = single_out(
            torch.cat([part.logp_behaviour for part in packed]),
            torch.cat([with_teacher(part, part.logp_behaviour, self._algorithm.teacher).advantages for part in packed]),
            torch.cat([part.mask for part in packed]),
            draws(batch, self._planned(batch), packed),
            config,
            add=self._trainer.added_over_data,
            gather=self._trainer.gathered_over_data,
        )
        marks = singled_out.split([len(part.mask) for part in packed])
        return [msgspec.structs.replace(part, singled_out=mark) for part, mark in zip(packed, marks, strict=True)]


def _proximal(part: MicroBatch) -> Tensor:
    """float32 [n], log-probabilities before the first optimizer step, in host memory like the rest of the
    micro-batch."""
    assert part.logp_proximal is not None
    return part.logp_proximal.cpu()


def _by_name(batch: Batch, of_rows: list[list[float]]) -> dict[RowName, list[float]]:
    return {record.name: of_row for record, of_row in zip(batch.rows, of_rows, strict=True)}
