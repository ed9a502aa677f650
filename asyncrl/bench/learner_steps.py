"""Optimizer steps of the learner beside those of a plain loop: the same model, rows, loss, gradient and optimizer.

The plain loop is the good one of its kind: rows padded to the longest of their micro-batch, torch's own attention and AdamW, and
logits of the sampled tokens only. Both compute log-probabilities and entropies, weigh tokens by truncated importance ratios, clip
the gradient and step.
"""

import math
import statistics
import time
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from asyncrl.core.batch import Batch, BatchRow
from asyncrl.core.ids import NOT_SAMPLED, GroupId, PolicyVersion, TaskId
from asyncrl.core.payload import PayloadRef
from asyncrl.core.recipe.algorithm import AlgorithmConfig, CorrectionConfig, PpoClipLoss
from asyncrl.core.recipe.schema import DeadlinesConfig, LearnerConfig
from asyncrl.core.trajectory import Sampling as Sampled
from asyncrl.core.trajectory import StopReason, Trajectory, Turn, VersionSpan

VOCABULARY, LONGEST = 4096, 2048
GROUP_SIZE = 8
LEARNING_RATE = 1e-6
TRUNCATION = 2.0
"""The largest importance weight: the recipe's default."""
SAME_GRADIENT = 1e-4
"""Relative: the two loops' gradient norms may differ by this before the first step."""

Rows = dict[tuple[GroupId, int], Trajectory]


class StepSettings(msgspec.Struct, frozen=True):
    """How steps are measured.

    Attributes:
        sigma: sigma of the logarithm of the rows' lengths; 0 for rows of one length.
        median_tokens: of a row.
        rows: rows of a batch.
        rows_at_once: of the plain loop's micro-batches; the learner packs ``rows_at_once * median_tokens`` tokens, or the longest
            row.
        repetitions: steps of each loop, in turn.
    """

    sigma: float
    median_tokens: int = 256
    rows: int = 16
    rows_at_once: int = 8
    repetitions: int = 5


class StepSpeed(msgspec.Struct, frozen=True):
    """The speed of the measured steps.

    Attributes:
        ratio: median over the repetitions of the learner's tokens a second over the plain loop's.
        learner_tokens_per_s, plain_tokens_per_s: medians; padding does not count.
        tokens: tokens of the batch.
        padding: share of the plain loop's tokens.
        gradient_difference: of the two gradient norms before the first step, relative.
    """

    ratio: float
    learner_tokens_per_s: float
    plain_tokens_per_s: float
    tokens: int
    padding: float
    gradient_difference: float


def measure(folder: Path, settings: StepSettings) -> StepSpeed:
    """Steps of both loops in turn, after one of each that warms up. Makes the model in ``folder``.

    Raises:
        RuntimeError: if the loops do not compute the same gradient.
    """
    from learners.learner import Learner as LearnerRank
    from learners.rank import FileMeeting, RankSpec

    disable_progress_bar()
    _make_model(folder)
    batch, rows = _make_batch(settings)
    lengths = [record.length for record in batch.rows]
    budget = max(settings.rows_at_once * settings.median_tokens, max(lengths))
    spec = RankSpec(rank=0, meeting=FileMeeting.make(folder / "meeting"))
    learner = LearnerRank(
        AlgorithmConfig(loss=PpoClipLoss(), correction=CorrectionConfig(anchor="proximal_recomputed", weight="token")),
        LearnerConfig(lr=LEARNING_RATE, micro_batch_tokens=budget),
        DeadlinesConfig(),
        temperature=1.0,
        steps=1,
        seed=0,
        model_path=folder,
        rank=spec,
    )
    plain = PlainLoop(folder, settings.rows_at_once)
    readings = {reading.metric.name: reading.value for reading in learner.step(batch, rows).readings}
    difference = abs(plain.step(batch, rows) / readings["learner/grad_norm"] - 1)
    if not difference < SAME_GRADIENT:
        raise RuntimeError(
            f"the gradient norms of learner and plain loop differ by {difference:.1e}; they do not do the same work"
        )
    times = []
    for _ in range(settings.repetitions):
        started = time.perf_counter()
        learner.step(batch, rows)
        between = time.perf_counter()
        plain.step(batch, rows)
        times.append((between - started, time.perf_counter() - between))
    learner.close()
    padded = sum(settings.rows_at_once * max(part) for part in _parts(lengths, settings.rows_at_once))
    return StepSpeed(
        ratio=statistics.median(of_plain / of_learner for of_learner, of_plain in times),
        learner_tokens_per_s=sum(lengths) / statistics.median(of_learner for of_learner, _ in times),
        plain_tokens_per_s=sum(lengths) / statistics.median(of_plain for _, of_plain in times),
        tokens=sum(lengths),
        padding=1 - sum(lengths) / padded,
        gradient_difference=difference,
    )


class PlainLoop:
    """A training loop as one writes it without a framework."""

    def __init__(self, folder: Path, rows_at_once: int) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
        self._rows_at_once = rows_at_once

    def step(self, batch: Batch, rows: Rows) -> float:
        """Train the batch; returns the gradient norm before clipping."""
        self._optimizer.zero_grad()
        tokens = sum(record.loss_tokens for record in batch.rows)
        rewards = np.array([record.reward for record in batch.rows]).reshape(-1, GROUP_SIZE)
        advantages = (rewards - rewards.mean(1, keepdims=True)) / rewards.std(1, keepdims=True)
        trajectories = [rows[record.group_id, record.sample_index] for record in batch.rows]
        for part in _parts(list(zip(trajectories, advantages.flatten().tolist(), strict=True)), self._rows_at_once):
            logp, behaviour, of_token = self._forward(part)
            weight = (logp.detach() - behaviour).exp().clamp(max=TRUNCATION)
            loss = -(weight * (logp - logp.detach()).exp() * of_token).sum() / tokens
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0).item()
        self._optimizer.step()
        return norm

    def _forward(self, part: list[tuple[Trajectory, float]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The sampled tokens' log-probability, behaviour log-probability and advantage."""
        longest = max(len(row) for row, _ in part)
        ids, is_token, sampled = (torch.zeros(len(part), longest, dtype=kind) for kind in (torch.int64, torch.int64, torch.bool))
        for number, (row, _) in enumerate(part):
            ids[number, : len(row)] = torch.from_numpy(row.token_ids.astype(np.int64))
            is_token[number, : len(row)] = 1
            sampled[number, : len(row)] = torch.from_numpy(row.loss_mask)
        # Without padding no mask is given, so that attention is torch's causal kernel.
        mask = None if is_token.all() else is_token
        hidden = self._model.model(input_ids=ids, attention_mask=mask).last_hidden_state
        logits = self._model.lm_head(hidden[:, :-1][sampled[:, 1:]])
        every = torch.log_softmax(logits, -1)
        with torch.no_grad():
            self.entropy = -(every.exp() * every).sum(-1).mean()
        logp = every.gather(1, ids[sampled].unsqueeze(1)).squeeze(1)
        behaviour = torch.from_numpy(np.concatenate([row.logprobs[row.loss_mask] for row, _ in part]))
        of_token = torch.cat([torch.full((int(row.loss_mask.sum()),), advantage) for row, advantage in part])
        return logp, behaviour, of_token


Item = TypeVar("Item")


def _parts(values: list[Item], size: int) -> list[list[Item]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def _make_model(folder: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=32,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def _make_batch(settings: StepSettings) -> tuple[Batch, Rows]:
    random = np.random.default_rng(0)
    lengths = settings.median_tokens * np.exp(settings.sigma * random.standard_normal(settings.rows))
    rows, records = {}, []
    for number, length in enumerate(np.clip(lengths, 16, LONGEST).astype(int).tolist()):
        row = _make_row(GroupId(number // GROUP_SIZE), number % GROUP_SIZE, length, random)
        rows[row.group_id, row.sample_index] = row
        records.append(
            BatchRow(
                group_id=row.group_id,
                task_id=row.task_id,
                sample_index=row.sample_index,
                length=length,
                sampled=((PolicyVersion(0), length - length // 4),),
                stop_reason=row.stop_reason,
                loss_tokens=int(row.loss_mask.sum()),
                reward=row.reward,
                committed_version=PolicyVersion(0),
                weight=1.0,
                payload=PayloadRef(shard=0, segment="", offset=0, size=0, checksum=0),
            )
        )
    return Batch(PolicyVersion(0), PolicyVersion(0), tuple(records)), rows


def _make_row(group: GroupId, sample: int, length: int, random: np.random.Generator) -> Trajectory:
    """A quarter prompt, the rest sampled by a policy near the one being trained, which knows nothing yet."""
    prompt = length // 4
    mask = np.arange(length) >= prompt
    behaviour = -math.log(VOCABULARY) + random.normal(0, 0.3, length)
    return Trajectory(
        task_id=TaskId(str(group)),
        group_id=group,
        sample_index=sample,
        attempt=0,
        token_ids=random.integers(0, VOCABULARY, length).astype(np.int32),
        logprobs=np.where(mask, behaviour, 0).astype(np.float32),
        loss_mask=mask,
        version_spans=(VersionSpan(0, prompt, NOT_SAMPLED), VersionSpan(prompt, length, PolicyVersion(0))),
        turns=(Turn(prompt, length, 0.0),),
        reward=float(sample % 2),
        stop_reason=StopReason.ENVIRONMENT_DONE,
        sampling=Sampled(temperature=1.0, top_p=1.0, top_k=0),
    )
