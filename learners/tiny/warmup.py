"""Supervised warm-up of the tiny model: from noise to a policy that solves some tasks of every kind, and no further.

It trains on demonstrations, with loss on what the assistant says only, until success on held-out tasks lies in a window. Success
rises steeply once it begins to rise, so it is measured every few steps then; a jump over the window is undone, and the way
repeated in smaller steps.
"""

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from asyncrl.core.errors import AsyncRLError
from learners.tiny.conversations import Row, pad
from learners.tiny.success import Success, measure, spoken_logits

CONTEXT_LENGTH = 1024


class WarmUpFailed(AsyncRLError):
    """The warm-up ended outside its window of success."""


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """How the tiny model is warmed up, and when that ends.

    Attributes:
        lowest, highest: the window of greedy success, mean over the kinds of tasks.
        lowest_sampled: mean success at temperature 1 must reach this as well, so that training has successes to learn from.
        every_kind: with this much sampled success at every number of calls the warm-up ends at once; else it looks for a better
            place in the window, for ``patience`` more steps or until it leaves the window.
        max_steps: optimizer steps before giving up.
        batch_size: demonstrations in a step.
        lr: of AdamW, reached linearly in ``lr_steps`` steps.
        smaller_steps: after a jump over the window the learning rate is multiplied by this.
        threads: CPU threads; part of what determines the result.
    """

    lowest: float = 0.34
    highest: float = 0.44
    lowest_sampled: float = 0.1
    every_kind: float = 0.03
    patience: int = 30
    max_steps: int = 600
    batch_size: int = 64
    lr: float = 3e-3
    lr_steps: int = 20
    smaller_steps: float = 0.3
    threads: int = 2


class Measurement(msgspec.Struct, frozen=True):
    """Success after so many optimizer steps."""

    step: int
    success: Success


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A small Qwen3 with random weights (0.46 million), drawn from torch's default generator."""
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,  # padded, so that it splits evenly over tensor-parallel ranks
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def warm_up(
    tokenizer: PreTrainedTokenizerFast,
    train: Sequence[Row],
    held_out: Sequence[Row],
    settings: WarmUp,
    seed: int,
    progress: Callable[[Measurement], None],
) -> tuple[Qwen3ForCausalLM, Measurement]:
    """A model inside the window of ``settings``, and what was measured there. ``progress`` hears of every measurement.

    Raises:
        WarmUpFailed: the window was not found in ``settings.max_steps`` steps.
    """
    with torch.random.fork_rng(), _threads(settings.threads):
        torch.manual_seed(seed)
        model = new_model(tokenizer)
        trainer = _Trainer(model, settings, _batches(train, settings.batch_size, random.Random(seed)))
        return model, _find_window(model, trainer, held_out, settings, progress)


class _Trainer:
    """Optimizer steps that can be undone."""

    def __init__(self, model: PreTrainedModel, settings: WarmUp, batches: Iterator[list[Row]]) -> None:
        self._model, self._batches = model, batches
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
        self._settings = settings
        self._lr = settings.lr
        self.step = 0

    def train(self) -> None:
        """One optimizer step."""
        self.step += 1
        for group in self._optimizer.param_groups:
            group["lr"] = self._lr * min(1.0, self.step / self._settings.lr_steps)
        logits, targets = spoken_logits(self._model, pad(next(self._batches)))
        self._optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, targets).backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()

    def snapshot(self) -> dict[str, Any]:
        """A copy of everything that :meth:`train` changes, but for the count of steps."""
        return copy.deepcopy({"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()})

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Back to ``snapshot``, on to smaller steps."""
        self._model.load_state_dict(snapshot["model"])
        self._optimizer.load_state_dict(snapshot["optimizer"])
        self._lr *= self._settings.smaller_steps


def _find_window(
    model: PreTrainedModel,
    trainer: _Trainer,
    held_out: Sequence[Row],
    settings: WarmUp,
    progress: Callable[[Measurement], None],
) -> Measurement:
    """Train until inside the window; leaves ``model`` there."""
    held_out_by_calls = [pad(rows) for rows in _by_calls(held_out)]
    before_window = trainer.snapshot()
    best: tuple[Measurement, dict[str, Any]] | None = None
    next_measurement = 10
    while trainer.step < settings.max_steps:
        trainer.train()
        if trainer.step < next_measurement:
            continue
        now = Measurement(trainer.step, measure(model, held_out_by_calls))
        progress(now)
        greedy, sampled = now.success.mean_greedy, now.success.mean_sampled
        next_measurement = trainer.step + (10 if greedy < 0.02 else 4 if greedy < settings.lowest / 2 else 2)
        in_window = settings.lowest <= greedy <= settings.highest and sampled >= settings.lowest_sampled
        if in_window and (best is None or min(now.success.sampled) > min(best[0].success.sampled)):
            best = (now, trainer.snapshot())
        if best is not None:
            enough = min(best[0].success.sampled) >= settings.every_kind
            if enough or greedy > settings.highest or trainer.step - best[0].step >= settings.patience:
                trainer.restore(best[1])
                return best[0]
        elif greedy > settings.highest:
            trainer.restore(before_window)
        else:
            before_window = trainer.snapshot()
    raise WarmUpFailed(
        f"after {trainer.step} steps the tiny model solves {greedy:.0%} of its tasks, {settings.lowest:.0%} to "
        f"{settings.highest:.0%} are wanted; try another seed"
    )


def _by_calls(rows: Sequence[Row]) -> list[list[Row]]:
    return [[row for row in rows if row.calls == calls] for calls in range(1, max(row.calls for row in rows) + 1)]


def _batches(rows: Sequence[Row], size: int, generator: random.Random) -> Iterator[list[Row]]:
    """Endless batches of all kinds; the longest, which is the hardest, comes twice as often as the others."""
    kinds = _by_calls(rows)
    weights = [1] * (len(kinds) - 1) + [2]
    while True:
        yield [generator.choice(kind) for kind in generator.choices(kinds, weights, k=size)]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
