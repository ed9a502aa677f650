"""Optimizer steps of the learner beside those of a plain loop: the same model, rows, loss, gradient and optimizer.

The plain loop is the good one of its kind: rows padded to the longest of their micro-batch, torch's own attention and AdamW, and
logits of the sampled tokens only. Both compute log-probabilities and entropies, weigh tokens by truncated importance ratios, clip
the gradient and step.
"""

import statistics
import time
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from asyncrl.bench.learner_subject import GROUP_SIZE, LONGEST, VOCABULARY, Rows, make_batch, make_learner, make_model, make_row
from asyncrl.core.batch import Batch
from asyncrl.core.ids import GroupId
from asyncrl.core.trajectory import Trajectory

LEARNING_RATE = 1e-6
TRUNCATION = 2.0
"""The largest importance weight: the recipe's default."""
SAME_GRADIENT = 1e-4
"""Relative: the two loops' gradient norms may differ by this before the first step."""


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
    make_model(folder)
    batch, rows = _make_batch(settings)
    lengths = [record.length for record in batch.rows]
    budget = max(settings.rows_at_once * settings.median_tokens, max(lengths))
    learner = make_learner(folder, budget, LEARNING_RATE)
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


def _make_batch(settings: StepSettings) -> tuple[Batch, Rows]:
    """A quarter of each row is prompt, another one for every row."""
    random = np.random.default_rng(0)
    lengths = settings.median_tokens * np.exp(settings.sigma * random.standard_normal(settings.rows))
    return make_batch(
        make_row(GroupId(number // GROUP_SIZE), number % GROUP_SIZE, random.integers(0, VOCABULARY, length // 4), length, random)
        for number, length in enumerate(np.clip(lengths, 16, LONGEST).astype(int).tolist())
    )
