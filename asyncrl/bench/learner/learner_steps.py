"""Compares optimizer steps of the learner and of a plain loop with the same model, rows, loss, gradient and optimizer.

The plain loop is a good one of its kind: it pads rows to the longest one of their micro-batch, uses torch's attention and AdamW,
and computes logits of the sampled tokens only. Both loops compute log-probabilities and entropies, weigh tokens by truncated
importance ratios, clip the gradient and step.
"""

import statistics
import time
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import torch

from asyncrl.bench.learner.learner_subject import (
    GROUP_SIZE,
    LONGEST,
    VOCABULARY,
    Episodes,
    make_batch,
    make_episode,
    make_learner,
    make_model,
)
from asyncrl.core.batch import Batch
from asyncrl.core.ids import GroupId
from asyncrl.core.trajectory import Trajectory
from asyncrl.learners.metrics import GRAD_NORM

LEARNING_RATE = 1e-6
TRUNCATION = 2.0
"""Upper bound of importance weights, the default of a recipe."""
SAME_GRADIENT = 1e-4
"""Largest relative difference of the two loops' gradient norms before the first step."""


class StepSettings(msgspec.Struct, frozen=True):
    """How optimizer steps are measured.

    Attributes:
        sigma: sigma of the logarithm of the rows' lengths; 0 for rows of one length.
        median_tokens: median length of a row.
        rows: rows of a batch.
        rows_at_once: rows of a micro-batch in the plain loop. The learner packs ``rows_at_once * median_tokens`` tokens, or as
            many as the longest row has if these are more.
        repetitions: measured steps of each loop; the loops alternate.
    """

    sigma: float
    median_tokens: int = 256
    rows: int = 16
    rows_at_once: int = 8
    repetitions: int = 5


class StepSpeed(msgspec.Struct, frozen=True):
    """The measured speed of both loops.

    Attributes:
        ratio: the learner's tokens per second over those of the plain loop; median over the repetitions.
        learner_tokens_per_s, plain_tokens_per_s: medians; padding does not count.
        tokens: tokens of the batch.
        padding: share of the plain loop's tokens that is padding.
        gradient_difference: relative difference of the two gradient norms before the first step.
    """

    ratio: float
    learner_tokens_per_s: float
    plain_tokens_per_s: float
    tokens: int
    padding: float
    gradient_difference: float


def measure(folder: Path, settings: StepSettings) -> StepSpeed:
    """Make a model in ``folder``, and measure steps of both loops in turn, after one of each that warms up.

    Raises:
        RuntimeError: the loops compute different gradients.
    """
    make_model(folder)
    batch, episodes = _make_batch(settings)
    lengths = [record.length for record in batch.rows]
    budget = max(settings.rows_at_once * settings.median_tokens, max(lengths))
    learner = make_learner(folder, budget, LEARNING_RATE)
    plain = PlainLoop(folder, settings.rows_at_once)
    readings = {reading.metric.name: reading.value for reading in learner.step(batch, episodes).readings}
    difference = abs(plain.step(batch, episodes) / readings[GRAD_NORM.name] - 1)
    if not difference < SAME_GRADIENT:
        raise RuntimeError(
            f"the gradient norms of learner and plain loop differ by {difference:.1e}, so they cannot be compared; a bug"
        )
    times = []
    for _ in range(settings.repetitions):
        started = time.perf_counter()
        learner.step(batch, episodes)
        between = time.perf_counter()
        plain.step(batch, episodes)
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
    """A training loop without a framework.

    Args:
        device: where it computes. On a GPU, weights are float32 under autocast to bfloat16, and Adam is fused.
    """

    def __init__(self, folder: Path, rows_at_once: int, device: str = "cpu") -> None:
        from transformers import AutoModelForCausalLM

        on_gpu = device != "cpu"
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True if on_gpu else None
        )
        self._rows_at_once, self._device = rows_at_once, torch.device(device)
        self._autocast = torch.autocast(device, torch.bfloat16, enabled=on_gpu)

    def step(self, batch: Batch, episodes: Episodes) -> float:
        """Train on the batch, and return the gradient norm before clipping."""
        self._optimizer.zero_grad()
        tokens = sum(record.loss_tokens for record in batch.rows)
        rewards = np.array([record.reward for record in batch.rows]).reshape(-1, GROUP_SIZE)
        advantages = (rewards - rewards.mean(1, keepdims=True)) / rewards.std(1, keepdims=True)
        trajectories = [episodes[record.name[:2]].trajectories[record.part] for record in batch.rows]
        for part in _parts(list(zip(trajectories, advantages.flatten().tolist(), strict=True)), self._rows_at_once):
            with self._autocast:
                logp, behaviour, of_token = self._forward(part)
            weight = (logp.detach() - behaviour).exp().clamp(max=TRUNCATION)
            loss = -(weight * (logp - logp.detach()).exp() * of_token).sum() / tokens
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0).item()
        self._optimizer.step()
        return norm

    def _forward(self, part: list[tuple[Trajectory, float]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Compute [n] log-probabilities, behaviour log-probabilities and advantages of the ``n`` sampled tokens of ``part``."""
        longest = max(len(row) for row, _ in part)
        ids, is_token, sampled = (torch.zeros(len(part), longest, dtype=kind) for kind in (torch.int64, torch.int64, torch.bool))
        for number, (row, _) in enumerate(part):
            ids[number, : len(row)] = torch.from_numpy(row.token_ids.astype(np.int64))
            is_token[number, : len(row)] = 1
            sampled[number, : len(row)] = torch.from_numpy(row.loss_mask)
        ids, is_token, sampled = ids.to(self._device), is_token.to(self._device), sampled.to(self._device)
        # Without padding no mask is given, so that torch uses its causal kernel.
        mask = None if is_token.all() else is_token
        hidden = self._model.model(input_ids=ids, attention_mask=mask).last_hidden_state
        logits = self._model.lm_head(hidden[:, :-1][sampled[:, 1:]])
        every = torch.log_softmax(logits, -1)
        with torch.no_grad():
            self.entropy = -(every.exp() * every).sum(-1).mean()
        logp = every.gather(1, ids[sampled].unsqueeze(1)).squeeze(1)
        behaviour = torch.from_numpy(np.concatenate([row.logprobs[row.loss_mask] for row, _ in part]))
        of_token = torch.cat([torch.full((int(row.loss_mask.sum()),), advantage) for row, advantage in part])
        return logp, behaviour.to(self._device), of_token.to(self._device)


Item = TypeVar("Item")


def _parts(values: list[Item], size: int) -> list[list[Item]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def _make_batch(settings: StepSettings) -> tuple[Batch, Episodes]:
    """Make a batch of rows, each with a prompt of its own that takes a quarter of the row."""
    random = np.random.default_rng(0)
    lengths = settings.median_tokens * np.exp(settings.sigma * random.standard_normal(settings.rows))
    return make_batch(
        make_episode(
            GroupId(number // GROUP_SIZE), number % GROUP_SIZE, random.integers(0, VOCABULARY, length // 4), length, random
        )
        for number, length in enumerate(np.clip(lengths, 16, LONGEST).astype(int).tolist())
    )
