"""Supervised warm-up of the tiny model: it learns to copy what the demonstrations show, including a bad habit.

The demonstrator mostly gives in to a habit that costs reward: at the calculator it is impatient and skips additions. A model
that copies it well solves about 40 % of its tasks. It fails the others because its policy is wrong, not because it copies
badly: it still has to learn when to call the tool. (A model that is stopped in the middle of its warm-up fails as often, but
at copying digits, which reinforcement learning improves far more slowly.)

Hidden matrices are trained by Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon), all other
parameters by AdamW. AdamW alone takes three times as many steps, and masters short tasks long before it solves a single
long one.

How many tasks a model would solve greedily, measured without playing a single episode, to show how a warm-up goes on.

In an ideal demonstration, the task determines every turn, and the tool always gives the same answer to a correct call.
So a greedy episode succeeds if and only if each of the assistant's tokens is the model's first choice after the
demonstration up to there, which one forward pass shows. (An episode that departs from the demonstration and still ends
well does not count.)
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean

import msgspec
import torch
from transformers import DynamicCache, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from asyncrl.core.errors import AsyncRLError
from asyncrl.learners.tiny.conversations import Example, PaddedRows, pad
from asyncrl.learners.tiny.settings import Size, WarmUp

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
    """One kind of task as token rows; see :class:`asyncrl.learners.tiny.material.Kind`."""

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


_PAYS = 100
"""Tokens from which on it pays to compute once what all rows begin with."""


def spoken_logits(model: Qwen3ForCausalLM, rows: PaddedRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [S, V] that predict the assistant's S tokens in ``rows``, and the ids [S] of those tokens.

    What all rows begin with is computed once: with the templates of others, that is half of a row and more.
    """
    shared = _shared(rows)
    beginning, rest = rows.token_ids[:1, :shared], rows.token_ids[:, shared:]
    cache = None
    if shared:
        cache = DynamicCache()
        for number, layer in enumerate(model.model(input_ids=beginning, use_cache=True).past_key_values.layers):
            cache.update(*(each.expand(len(rest), -1, -1, -1) for each in (layer.keys, layer.values)), number)
    hidden = model.model(input_ids=rest[:, :-1], past_key_values=cache, use_cache=bool(shared)).last_hidden_state
    spoken = rows.spoken[:, shared + 1 :]
    return model.lm_head(hidden[spoken]), rest[:, 1:][spoken]


def _shared(rows: PaddedRows) -> int:
    """Return how many tokens all rows begin with, without the last one that none of them speaks; 0 if sharing does not pay."""
    alike = (rows.token_ids == rows.token_ids[:1]).all(0) & ~rows.spoken.any(0)
    shared = int(alike.long().cumprod(0).sum()) - 1
    return shared if shared >= _PAYS else 0


@torch.no_grad()
def measure(model: Qwen3ForCausalLM, kinds: Sequence[PaddedRows | None]) -> float:
    """The share of tasks solved greedily, averaged over the kinds of tasks, each with equal weight.

    Args:
        model: the model to measure.
        kinds: for each kind of task, ideal demonstrations; None if there are none.
    """
    shares = []
    for rows in kinds:
        if rows is None:
            continue
        logits, targets = spoken_logits(model, rows)
        spoken = rows.spoken[:, 1:]
        right = torch.ones(spoken.shape, dtype=torch.bool)
        right[spoken] = logits.argmax(-1) == targets
        shares.append(right.all(1).float().mean().item())
    return fmean(shares)
