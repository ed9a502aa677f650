"""Part 2: training steps of the learner beside a plain loop of Hugging Face's model and torch, on the same rows."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import torch

from asyncrl.bench.gpu.isolated import MeasurementFailed, isolated
from asyncrl.bench.gpu.settings import ModelSize, TrainingSettings
from asyncrl.bench.gpu.subject import (
    at_version,
    device,
    folder_for,
    make_learner,
    make_model,
    rows_of,
    synchronize,
    values_of,
)
from asyncrl.bench.learner_steps import PlainLoop
from asyncrl.bench.learner_subject import GROUP_SIZE, Rows
from asyncrl.core.batch import Batch

Result = TypeVar("Result")

EQUAL_RATIO, LOGNORMAL_RATIO, LEAST_MFU = 0.95, 1.5, 0.40
"""The targets: the learner's tokens per second over the plain loop's, and the share of the device's peak at 1.7 B."""
STATE_BYTES = 18
"""Bytes a weight that a learner of one rank needs: bfloat16 weights, float32 gradient, master weights and two moments."""


class Speed(msgspec.Struct, frozen=True):
    """How fast training steps are.

    Attributes:
        step_seconds: median of the steps.
        tokens_per_s: tokens of the rows; padding does not count.
        mfu: share of the device's dense bfloat16 peak; None where the peak is not known.
        tflops: model FLOPs a second.
        peak_bytes: the most GPU memory at any time; None on a CPU.
    """

    step_seconds: float
    tokens_per_s: float
    tflops: float
    mfu: float | None
    peak_bytes: int | None


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement.

    Attributes:
        model, rows, options: the model's size, the kind of rows, and keys of the recipe's learner.
        learner, plain: the speed of either loop; ``plain`` is None where only variants of the learner are compared.
        ratio: the learner's tokens per second over the plain loop's.
        gradient_gap: relative difference of the two loops' gradient norms before the first step.
        problem: why there is no figure; empty if there is.
    """

    model: str
    rows: str
    options: dict[str, str]
    learner: Speed | None = None
    plain: Speed | None = None
    ratio: float | None = None
    gradient_gap: float | None = None
    problem: str = ""


class TrainingResult(msgspec.Struct, frozen=True, kw_only=True):
    """All cases, and what the targets say of them; ``seconds`` is what each took in all."""

    device: str
    cases: tuple[Case, ...]
    targets: dict[str, bool]
    missing: tuple[str, ...]


def measure(settings: TrainingSettings, seconds: float) -> TrainingResult:
    """Measure all cases that fit on the device, the smallest model first, until the time is over."""
    ends, cases, missing = time.monotonic() + seconds, [], []
    for size in settings.models:
        if torch.cuda.is_available():
            there = torch.cuda.get_device_properties(0).total_memory
            if size.parameters * STATE_BYTES > 0.9 * there:
                missing.append(
                    f"{size.name}: its training state needs {size.parameters * STATE_BYTES >> 30} GiB of {there >> 30}"
                )
                continue
        with folder_for(size) as folder:
            try:
                isolated(make_model, folder, size, seconds=max(1.0, ends - time.monotonic()))
            except MeasurementFailed as failure:
                missing.append(f"{size.name}: {failure}")
                continue
            for rows, options, beside in _cases_of(size, settings):
                left = ends - time.monotonic()
                case = Case(model=size.name, rows=rows, options=options)
                if left < 1:
                    cases.append(msgspec.structs.replace(case, problem="there was no time left"))
                    continue
                try:
                    cases.append(isolated(one_case, folder, size, settings, case, beside, seconds=left))
                except MeasurementFailed as failure:
                    cases.append(msgspec.structs.replace(case, problem=str(failure)))
    if not torch.cuda.is_available():
        missing.append("a GPU: the figures are of a CPU and mean nothing")
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return TrainingResult(
        device=name, cases=tuple(cases), targets=_targets(cases) if torch.cuda.is_available() else {}, missing=tuple(missing)
    )


def _cases_of(size: ModelSize, settings: TrainingSettings) -> list[tuple[str, dict[str, str], bool]]:
    """Rows and options of each case, and whether the plain loop runs beside the learner."""
    cases: list[tuple[str, dict[str, str], bool]] = [("equal", {}, True), ("lognormal", {}, True)]
    if size.name == settings.variants_of:
        cases += [("shared", {}, False), ("equal", {"recompute": "full"}, False), ("equal", {"fp8": "hybrid"}, False)]
    return cases


def one_case(folder: Path, size: ModelSize, settings: TrainingSettings, case: Case, beside: bool) -> Case:
    """Measure one case in this process."""
    dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    batch, rows = _rows(size, settings, case.rows)
    lengths = [row.length for row in batch.rows]
    budget = max(settings.micro_batch_tokens, max(lengths))
    learner = make_learner(folder, budget, dtype=dtype, **case.options)
    plain = PlainLoop(folder, settings.plain_rows, device()) if beside else None
    first = values_of(learner.step(at_version(batch, 0), rows))
    gap = None if plain is None else abs(plain.step(batch, rows) / first["learner/grad_norm"] - 1)
    ours: list[dict[str, float]] = []
    of_learner, of_plain, peaks = [], [], [0, 0]
    for number in range(settings.repetitions):
        values, took, peaks[0] = _timed(partial(learner.step, at_version(batch, number + 1), rows))
        ours.append(values_of(values))
        of_learner.append(took)
        if plain is not None:
            _, took, peaks[1] = _timed(partial(plain.step, batch, rows))
            of_plain.append(took)
    learner.close()
    tokens, seconds = sum(lengths), statistics.median(of_learner)
    tflops = statistics.median(values["learner/tflops_per_rank"] for values in ours)
    mfu = ours[-1].get("learner/mfu")
    on_gpu = torch.cuda.is_available()
    speed = Speed(seconds, tokens / seconds, tflops, mfu, peaks[0] if on_gpu else None)
    if not of_plain:
        return msgspec.structs.replace(case, learner=speed)
    seconds_plain = statistics.median(of_plain)
    scale = seconds / seconds_plain  # the same model FLOPs in another time
    beside_it = Speed(
        seconds_plain,
        tokens / seconds_plain,
        tflops * scale,
        None if mfu is None else mfu * scale,
        peaks[1] if on_gpu else None,
    )
    return msgspec.structs.replace(case, learner=speed, plain=beside_it, ratio=seconds_plain / seconds, gradient_gap=gap)


def _timed(work: Callable[[], Result]) -> tuple[Result, float, int]:
    """Call ``work``; its result, its seconds, and the most GPU memory meanwhile."""
    synchronize()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    result = work()
    synchronize()
    return result, time.perf_counter() - began, torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def _rows(size: ModelSize, settings: TrainingSettings, kind: str) -> tuple[Batch, Rows]:
    if kind == "equal":
        count = max(GROUP_SIZE, settings.step_tokens // settings.row_tokens // GROUP_SIZE * GROUP_SIZE)
        return rows_of([settings.row_tokens] * count, size.vocabulary)
    random = np.random.default_rng(0)
    count = max(GROUP_SIZE, int(settings.step_tokens / settings.median_tokens / 1.6) // GROUP_SIZE * GROUP_SIZE)
    drawn = settings.median_tokens * np.exp(settings.sigma * random.standard_normal(count))
    prompt = settings.row_tokens // 2 if kind == "shared" else None
    lengths = np.clip(drawn, 16, settings.row_tokens - (prompt or 0)).astype(int) + (prompt or 0)
    return rows_of(lengths.tolist(), size.vocabulary, prompt)


def _targets(cases: list[Case]) -> dict[str, bool]:
    """Which targets were met by the cases that were measured beside the plain loop."""
    met = {}
    for case in cases:
        least = {"equal": EQUAL_RATIO, "lognormal": LOGNORMAL_RATIO}.get(case.rows)
        if case.ratio is not None and least is not None:
            met[f"{case.model} {case.rows}: {least} of the plain loop"] = case.ratio >= least
        if case.model == "1.7B" and case.rows == "equal" and not case.options and case.learner and case.learner.mfu:
            met[f"1.7B: MFU {LEAST_MFU}"] = case.learner.mfu >= LEAST_MFU
    return met
