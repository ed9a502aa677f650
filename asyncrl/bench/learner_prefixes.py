"""Optimizer steps of the learner where the rows of a group share a long prompt, beside the same learner without sharing.

Both take the same steps on the same rows, with the same budget of tokens for a micro-batch.
"""

import statistics
import time
from pathlib import Path

import msgspec
import numpy as np

from asyncrl.bench.learner_subject import GROUP_SIZE, LONGEST, VOCABULARY, Rows, make_batch, make_learner, make_model, make_row
from asyncrl.core.batch import Batch
from asyncrl.core.ids import GroupId

SAME_GRADIENT = 1e-5
"""Relative: the gradient norms with and without sharing may differ by this."""


class PrefixSettings(msgspec.Struct, frozen=True):
    """What is measured.

    Attributes:
        groups: groups of 8 rows in a batch.
        prompt: tokens of each group's prompt.
        median_suffix, sigma: median, and sigma of the logarithm, of the tokens that each row sampled.
        micro_batch_tokens: budget of a micro-batch.
        repetitions: steps with and without sharing, in turn.
    """

    groups: int = 2
    prompt: int = 512
    median_suffix: int = 128
    sigma: float = 0.5
    micro_batch_tokens: int = 2048
    repetitions: int = 5


class PrefixSpeed(msgspec.Struct, frozen=True):
    """What was measured.

    Attributes:
        ratio: median over the repetitions of time without sharing over time with it.
        tokens_per_s: tokens of the rows a second, with sharing; the median.
        computed_tokens_per_s: the same of the tokens that are computed.
        separate_tokens_per_s: tokens a second without sharing.
        tokens: tokens of the batch's rows.
        token_ratio: how many times as many tokens are computed without sharing.
        gradient_difference: of the two gradient norms, relative.
    """

    ratio: float
    tokens_per_s: float
    computed_tokens_per_s: float
    separate_tokens_per_s: float
    tokens: int
    token_ratio: float
    gradient_difference: float


def measure(folder: Path, settings: PrefixSettings) -> PrefixSpeed:
    """Steps with and without sharing in turn, after one of each that warms up. Makes the model in ``folder``.

    Raises:
        RuntimeError: if the two do not compute the same gradient.
    """
    make_model(folder)
    batch, rows = _make_batch(settings)
    # All steps compute the same gradient if none moves the weights.
    learner = make_learner(folder, settings.micro_batch_tokens, learning_rate=0.0)

    def step(*, shares_prefixes: bool) -> dict[str, float]:
        learner.preparation.shares_prefixes = shares_prefixes
        started = time.perf_counter()
        readings = learner.step(batch, rows).readings
        seconds = time.perf_counter() - started
        return {reading.metric.name: reading.value for reading in readings} | {"seconds": seconds}

    shared, separate = step(shares_prefixes=True), step(shares_prefixes=False)
    difference = abs(shared["learner/grad_norm"] / separate["learner/grad_norm"] - 1)
    if not difference < SAME_GRADIENT:
        raise RuntimeError(
            f"the gradient norms with and without sharing differ by {difference:.1e}; sharing computes something else"
        )
    times = [(step(shares_prefixes=True)["seconds"], step(shares_prefixes=False)["seconds"]) for _ in range(settings.repetitions)]
    learner.close()
    tokens = sum(record.length for record in batch.rows)
    computed = shared["learner/tokens_computed"]
    seconds = statistics.median(of_shared for of_shared, _ in times)
    return PrefixSpeed(
        ratio=statistics.median(of_separate / of_shared for of_shared, of_separate in times),
        tokens_per_s=tokens / seconds,
        computed_tokens_per_s=computed / seconds,
        separate_tokens_per_s=tokens / statistics.median(of_separate for _, of_separate in times),
        tokens=tokens,
        token_ratio=separate["learner/tokens_computed"] / computed,
        gradient_difference=difference,
    )


def _make_batch(settings: PrefixSettings) -> tuple[Batch, Rows]:
    """Rows of groups, each of which has one prompt."""
    random = np.random.default_rng(0)
    rows = []
    for group in range(settings.groups):
        prompt = random.integers(0, VOCABULARY, settings.prompt)
        sampled = settings.median_suffix * np.exp(settings.sigma * random.standard_normal(GROUP_SIZE))
        lengths = np.clip(settings.prompt + np.maximum(sampled, 1), 0, LONGEST).astype(int).tolist()
        rows += [make_row(GroupId(group), sample, prompt, length, random) for sample, length in enumerate(lengths)]
    return make_batch(rows)
