"""Supervised warm-up of the tiny model: from noise to a policy that solves some tasks of every kind, and no further.

It trains on demonstrations, with loss on what the assistant says only, until success on held-out tasks lies in a window. Success
rises steeply once it begins to rise, so it is measured at every step then; a jump over the window is undone, and the way repeated
in smaller steps. Hidden matrices are trained by Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon), all else by
AdamW: with AdamW alone it takes three times as many steps, and short tasks are mastered long before one long task succeeds.
"""

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from asyncrl.core.errors import AsyncRLError
from learners.tiny.calibration import calibrate
from learners.tiny.conversations import Row, pad
from learners.tiny.success import Success, measure, spoken_logits

CONTEXT_LENGTH = 1024

_CALIBRATION_ROWS = 256


class WarmUpFailed(AsyncRLError):
    """The warm-up ended outside its window of success."""


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """How the tiny model is warmed up, and when that ends.

    Attributes:
        lowest, highest: the window of greedy success, mean over the kinds of tasks.
        every_kind: success at temperature 1 that no kind of task may fall below, so that training finds successes of all kinds.
        max_steps: optimizer steps before giving up.
        batch_size: demonstrations in a step.
        matrix_lr: of Muon.
        lr: of AdamW.
        lr_steps: both learning rates rise linearly over so many steps.
        smaller_steps: after a jump over the window both learning rates are multiplied by this.
        threads: CPU threads; part of what determines the result.
    """

    lowest: float = 0.34
    highest: float = 0.44
    every_kind: float = 0.03
    max_steps: int = 300
    batch_size: int = 64
    matrix_lr: float = 0.04
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
        held_out_by_calls = [pad(rows) for rows in _by_calls(held_out)]
        before = trainer.snapshot()
        next_measurement = 5
        measured = Measurement(0, measure(model, held_out_by_calls))
        while trainer.step < settings.max_steps:
            trainer.train()
            if trainer.step < next_measurement:
                continue
            measured = Measurement(trainer.step, measure(model, held_out_by_calls))
            progress(measured)
            greedy = measured.success.mean_greedy
            next_measurement = trainer.step + (1 if greedy > settings.lowest / 10 else 5)
            if greedy > settings.highest:
                trainer.restore(before)
                trainer.take_smaller_steps()
                continue
            before = trainer.snapshot()
            if greedy >= settings.lowest:
                calibrate(model, pad(train[:_CALIBRATION_ROWS]))
                calibrated = Measurement(trainer.step, measure(model, held_out_by_calls))
                if min(calibrated.success.sampled) >= settings.every_kind:
                    return model, calibrated
                trainer.restore(before)
    raise WarmUpFailed(
        f"after {settings.max_steps} steps the tiny model solves {measured.success.mean_greedy:.0%} of its tasks, greedy, and "
        f"{measured.success.sampled} of each kind when it samples; wanted are {settings.lowest:.0%} to {settings.highest:.0%}, "
        f"and {settings.every_kind:.0%} of each kind; try another seed"
    )


class _Snapshot(msgspec.Struct, frozen=True):
    model: dict[str, torch.Tensor]
    optimizers: list[dict[str, object]]


class _Trainer:
    """Optimizer steps that can be undone. ``step`` counts all of them, also those undone."""

    def __init__(self, model: Qwen3ForCausalLM, settings: WarmUp, batches: Iterator[list[Row]]) -> None:
        self._model, self._settings, self._batches = model, settings, batches
        layers = list(model.model.layers.parameters())
        matrices = [parameter for parameter in layers if parameter.ndim == 2]
        others = [model.model.embed_tokens.weight, model.model.norm.weight, *(p for p in layers if p.ndim == 1)]
        self._optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.Muon(matrices, weight_decay=0.01), settings.matrix_lr),
            (torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.01), settings.lr),
        ]
        self._scale = 1.0
        self.step = 0

    def train(self) -> None:
        """One optimizer step."""
        self.step += 1
        logits, targets = spoken_logits(self._model, pad(next(self._batches)))
        self._model.zero_grad()
        torch.nn.functional.cross_entropy(logits, targets).backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        for optimizer, lr in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * self._scale * min(1.0, self.step / self._settings.lr_steps)
            optimizer.step()

    def snapshot(self) -> _Snapshot:
        """A copy of the model and of the optimizers' state."""
        optimizers = [optimizer.state_dict() for optimizer, _ in self._optimizers]
        return copy.deepcopy(_Snapshot(self._model.state_dict(), optimizers))

    def restore(self, snapshot: _Snapshot) -> None:
        """Back to ``snapshot``."""
        self._model.load_state_dict(snapshot.model)
        for (optimizer, _), state in zip(self._optimizers, copy.deepcopy(snapshot.optimizers), strict=True):
            optimizer.load_state_dict(state)

    def take_smaller_steps(self) -> None:
        """From now on."""
        self._scale *= self._settings.smaller_steps


def _by_calls(rows: Sequence[Row]) -> list[list[Row]]:
    return [[row for row in rows if row.calls == calls] for calls in range(1, max(row.calls for row in rows) + 1)]


def _batches(rows: Sequence[Row], size: int, generator: random.Random) -> Iterator[list[Row]]:
    """Endless batches of all kinds; the longest, which is the hardest, comes twice as often as each other."""
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
