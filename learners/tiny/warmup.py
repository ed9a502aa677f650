"""Supervised warm-up of the tiny model: it learns to copy what the demonstrations show, including a bad habit.

The demonstrator mostly gives in to a habit that costs reward: at the calculator it is impatient and skips additions. A model
that copies it well solves about 40 % of its tasks. It fails the others because its policy is wrong, not because it copies
badly: it still has to learn when to call the tool. (A model that is stopped in the middle of its warm-up fails as often, but
at copying digits, which reinforcement learning improves far more slowly.)

Hidden matrices are trained by Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon), all other
parameters by AdamW. AdamW alone takes three times as many steps, and masters short tasks long before it solves a single
long one.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import torch
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from asyncrl.core.errors import AsyncRLError
from learners.tiny.conversations import Example, pad
from learners.tiny.settings import Size, WarmUp
from learners.tiny.success import measure, spoken_logits

_SPREAD, _COMMON = 5.0, 1.5
"""How much larger than usual the entries begin that are used, and the length of what they have in common."""


class WarmUpFailed(AsyncRLError):
    """The warm-up did not teach the model what it should."""


class Measurement(msgspec.Struct, frozen=True):
    """The skill of a model after ``step`` optimizer steps.

    Attributes:
        success: share of the held-out tasks that it solves.
        skill: share of the held-out tasks that do not tempt it that it solves.
    """

    step: int
    success: float
    skill: float


class Rows(msgspec.Struct, frozen=True):
    """One kind of task as token rows; see :class:`learners.tiny.material.Kind`."""

    weight: float
    train: Sequence[Example]
    held_out: Sequence[Example]
    spared: Sequence[Example]


def config_of(tokenizer: PreTrainedTokenizerBase, size: Size, ends: Sequence[int]) -> Qwen3Config:
    """Return the configuration of a small Qwen3 (with the usual size, 0.46 million weights).

    Args:
        ends: ids of the tokens that end a turn.
    """
    return Qwen3Config(
        vocab_size=size.entries or -(-len(tokenizer) // 64) * 64,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        head_dim=size.head,
        intermediate_size=size.feed_forward,
        max_position_embeddings=size.context,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=ends[0] if len(ends) == 1 else list(ends),
        pad_token_id=tokenizer.pad_token_id,
    )


def warm_up(
    config: Qwen3Config,
    kinds: Sequence[Rows],
    settings: WarmUp,
    steps: int,
    seed: int,
    progress: Callable[[Measurement], None],
    weights: torch.Tensor | None = None,
) -> tuple[Qwen3ForCausalLM, Measurement]:
    """Train a new model for ``steps`` optimizer steps and return it with the last measurement.

    Args:
        progress: called with every measurement.
        weights: how many entries of a larger vocabulary each one stands for; None for one each.
    """
    held_out = [pad(kind.held_out) if kind.held_out else None for kind in kinds]
    spared = [pad(kind.spared) if kind.spared else None for kind in kinds]
    with torch.random.fork_rng(), _threads(settings.threads):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
        if weights is not None:
            _begin_with_what_is_said(model, weights == 1)
        optimizers = _optimizers(model, settings)
        batches = _batches(kinds, settings.batch_size, random.Random(seed))
        for step in range(1, steps + 1):
            _train(model, optimizers, next(batches), _lr_share(step, steps, settings.lr_steps), weights)
            if step % settings.measure_every == 0 or step == steps:
                measured = Measurement(step, measure(model, held_out), measure(model, spared))
                progress(measured)
    return model, measured


@torch.no_grad()
def _begin_with_what_is_said(model: Qwen3ForCausalLM, used: torch.Tensor) -> None:
    """Give the entries that are used something in common: else it takes a hundred steps until no others are said."""
    entries = model.model.embed_tokens.weight
    common = torch.nn.functional.normalize(torch.randn(entries.shape[1]), dim=0)
    entries[used] = _SPREAD * entries[used] + _COMMON * common


def _optimizers(model: Qwen3ForCausalLM, settings: WarmUp) -> dict[torch.optim.Optimizer, float]:
    """The optimizers and the peak learning rate of each."""
    layers = list(model.model.layers.parameters())
    matrices = [parameter for parameter in layers if parameter.ndim == 2]
    others = [model.model.embed_tokens.weight, model.model.norm.weight, *(p for p in layers if p.ndim == 1)]
    return {
        torch.optim.Muon(matrices, weight_decay=0.01): settings.matrix_lr,
        torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.01): settings.lr,
    }


def _lr_share(step: int, steps: int, rising: int) -> float:
    """Share of the peak learning rate: it rises for the first steps, and falls over the second half to just above zero."""
    return min(1.0, step / rising, 2 * (steps + 1 - step) / steps)


def _train(
    model: Qwen3ForCausalLM,
    optimizers: dict[torch.optim.Optimizer, float],
    rows: Sequence[Example],
    lr_share: float,
    weights: torch.Tensor | None,
) -> None:
    """Take one optimizer step on the assistant's tokens in ``rows``."""
    logits, targets = spoken_logits(model, pad(rows))
    if weights is not None:
        logits = logits + weights.log()
    model.zero_grad()
    torch.nn.functional.cross_entropy(logits, targets).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer, lr in optimizers.items():
        for group in optimizer.param_groups:
            group["lr"] = lr * lr_share
        optimizer.step()


def _batches(kinds: Sequence[Rows], size: int, generator: random.Random) -> Iterator[list[Example]]:
    """Yield endless batches of all kinds, each as often as its weight says."""
    weights = [kind.weight for kind in kinds]
    while True:
        yield [generator.choice(kind.train) for kind in generator.choices(kinds, weights, k=size)]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
