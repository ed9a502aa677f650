"""Compares optimizer steps with and without sharing, where the rows of a group begin with the same long prompt.

The learner takes the same steps on the same rows both times, with the same token budget of a micro-batch.
"""

import statistics
import time
from pathlib import Path

import msgspec
import numpy as np

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
from asyncrl.learners.metrics import GRAD_NORM, TOKENS_COMPUTED

SAME_GRADIENT = 1e-5
"""Largest relative difference of the gradient norms with and without sharing."""


class PrefixSettings(msgspec.Struct, frozen=True):
    """How optimizer steps with shared prefixes are measured.

    Attributes:
        layers: layers of the model.
        groups: groups of 8 rows in a batch.
        prompt: tokens of each group's prompt.
        median_suffix, sigma: median, and sigma of the logarithm, of the tokens that each row sampled.
        micro_batch_tokens: token budget of a micro-batch.
        repetitions: measured steps with sharing, and as many without, which alternate.
    """

    layers: int = 4
    groups: int = 2
    prompt: int = 512
    median_suffix: int = 128
    sigma: float = 0.5
    micro_batch_tokens: int = 2048
    repetitions: int = 5


class PrefixSpeed(msgspec.Struct, frozen=True):
    """The measured speed of optimizer steps with and without sharing.

    Attributes:
        ratio: median over the repetitions of time without sharing over time with it.
        tokens_per_s: tokens of the rows per second, with sharing; the median.
        computed_tokens_per_s: computed tokens per second, with sharing; a shared prefix is computed once.
        separate_tokens_per_s: tokens per second without sharing; the median.
        tokens: tokens of the batch's rows.
        token_ratio: how many times as many tokens are computed without sharing.
        gradient_difference: relative difference of the two gradient norms.
    """

    ratio: float
    tokens_per_s: float
    computed_tokens_per_s: float
    separate_tokens_per_s: float
    tokens: int
    token_ratio: float
    gradient_difference: float


def measure(folder: Path, settings: PrefixSettings) -> PrefixSpeed:
    """Make a model in ``folder``, and measure steps with and without sharing in turn, after one of each that warms up.

    Raises:
        RuntimeError: the gradients with and without sharing differ.
    """
    make_model(folder, settings.layers)
    batch, rows = _make_batch(settings)
    # With a learning rate of 0 the weights stay, so all steps compute the same gradient.
    learner = make_learner(folder, settings.micro_batch_tokens, learning_rate=0.0)

    def step(*, shares_prefixes: bool) -> dict[str, float]:
        learner.preparation.shares_prefixes = shares_prefixes
        started = time.perf_counter()
        readings = learner.step(batch, rows).readings
        seconds = time.perf_counter() - started
        return {reading.metric.name: reading.value for reading in readings} | {"seconds": seconds}

    shared, separate = step(shares_prefixes=True), step(shares_prefixes=False)
    difference = abs(shared[GRAD_NORM.name] / separate[GRAD_NORM.name] - 1)
    if not difference < SAME_GRADIENT:
        raise RuntimeError(
            f"the gradient norms with and without sharing differ by {difference:.1e}; sharing changes the gradient, a bug"
        )
    times = [(step(shares_prefixes=True)["seconds"], step(shares_prefixes=False)["seconds"]) for _ in range(settings.repetitions)]
    learner.close()
    tokens = sum(record.length for record in batch.rows)
    computed = shared[TOKENS_COMPUTED.name]
    seconds = statistics.median(of_shared for of_shared, _ in times)
    return PrefixSpeed(
        ratio=statistics.median(of_separate / of_shared for of_shared, of_separate in times),
        tokens_per_s=tokens / seconds,
        computed_tokens_per_s=computed / seconds,
        separate_tokens_per_s=tokens / statistics.median(of_separate for _, of_separate in times),
        tokens=tokens,
        token_ratio=separate[TOKENS_COMPUTED.name] / computed,
        gradient_difference=difference,
    )


def _make_batch(settings: PrefixSettings) -> tuple[Batch, Episodes]:
    """Make a batch of groups; all rows of a group begin with the same prompt."""
    random = np.random.default_rng(0)
    rows = []
    for group in range(settings.groups):
        prompt = random.integers(0, VOCABULARY, settings.prompt)
        sampled = settings.median_suffix * np.exp(settings.sigma * random.standard_normal(GROUP_SIZE))
        lengths = np.clip(settings.prompt + np.maximum(sampled, 1), 0, LONGEST).astype(int).tolist()
        rows += [make_episode(GroupId(group), sample, prompt, length, random) for sample, length in enumerate(lengths)]
    return make_batch(rows)
