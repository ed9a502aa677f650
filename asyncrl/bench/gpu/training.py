"""Part 2: training steps of the learner beside a plain loop of Hugging Face's model and torch, on the same rows.

Each loop has a process of its own, because a GPU does not have room for both: of 1.7 B, they would take 108 GB.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import numpy as np
import torch

from asyncrl.bench.gpu.isolated import MeasurementFailed, isolated
from asyncrl.bench.gpu.room import learner_bytes, plain_bytes, plain_rows, recomputed
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
from asyncrl.bench.learner.learner_steps import PlainLoop
from asyncrl.bench.learner.learner_subject import GROUP_SIZE, Episodes
from asyncrl.core.batch import Batch
from asyncrl.learners.metrics import GRAD_NORM, MFU, TFLOPS_PER_RANK

Result = TypeVar("Result")

EQUAL_RATIO, LOGNORMAL_RATIO, LEAST_MFU = 0.95, 1.5, 0.47
"""The targets: the learner's tokens per second over the plain loop's, and the share of the device's peak at 1.7 B."""


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
        problem: why there is no figure of the learner, or none of the plain loop beside it; empty if there are all.
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

    def with_more(self, other: "TrainingResult") -> "TrainingResult":
        """This result and that of another size."""
        return msgspec.structs.replace(
            self,
            cases=(*self.cases, *other.cases),
            targets=self.targets | other.targets,
            missing=tuple(dict.fromkeys((*self.missing, *other.missing))),
        )


class Timed(msgspec.Struct, frozen=True):
    """What a loop did: its speed, and its gradient norm before the first step."""

    speed: Speed
    grad_norm: float


def measure(settings: TrainingSettings, seconds: float) -> TrainingResult:
    """Measure all cases that fit on the device, the smallest model first, until the time is over."""
    ends, cases, missing = time.monotonic() + seconds, [], []
    there = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None
    for size in settings.models:
        if (fitting := recomputed(size, settings, there)) is None:
            least = learner_bytes(size, settings, recompute="full")
            missing.append(f"{size.name}: its learner needs {least >> 30} GiB of {(there or 0) >> 30}")
            continue
        rows_at_once = plain_rows(size, settings, there)
        if not rows_at_once:
            needed = plain_bytes(size, settings.row_tokens)
            missing.append(f"{size.name}: the plain loop beside it needs {needed >> 30} GiB of {(there or 0) >> 30}")
        with folder_for(size) as folder:
            try:
                isolated(make_model, folder, size, seconds=max(1.0, ends - time.monotonic()), forked=there is None)
            except MeasurementFailed as failure:
                missing.append(f"{size.name}: {failure}")
                continue
            for rows, options, beside in _cases_of(size, settings):
                case = Case(model=size.name, rows=rows, options=fitting | options)
                cases.append(_measured(case, partial(_time_one, folder, size, settings), rows_at_once if beside else 0, ends))
    if there is None:
        missing.append("a GPU: the figures are of a CPU and mean nothing")
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return TrainingResult(
        device=name, cases=tuple(cases), targets=_targets(cases) if torch.cuda.is_available() else {}, missing=tuple(missing)
    )


def _cases_of(size: ModelSize, settings: TrainingSettings) -> list[tuple[str, dict[str, str], bool]]:
    """Rows and options of each case, and whether the plain loop is measured beside the learner."""
    cases: list[tuple[str, dict[str, str], bool]] = [("equal", {}, True), ("lognormal", {}, True)]
    if size.name == settings.variants_of:
        cases += [("shared", {}, False), ("equal", {"recompute": "full"}, False), ("equal", {"fp8": "hybrid"}, False)]
    return cases


def _measured(case: Case, time_one: "_TimeOne", rows_at_once: int, ends: float) -> Case:
    """Measure the learner and then, unless ``rows_at_once`` is 0, the plain loop. If that fails, the learner's figures stay."""
    try:
        ours = time_one(time_learner, case, ends)
    except MeasurementFailed as failure:
        return msgspec.structs.replace(case, problem=str(failure))
    case = msgspec.structs.replace(case, learner=ours.speed)
    if not rows_at_once:
        return case
    try:
        plain = time_one(time_plain_loop, case, ends, rows_at_once)
    except MeasurementFailed as failure:
        return msgspec.structs.replace(case, problem=f"the plain loop: {failure}")
    ratio = plain.speed.step_seconds / ours.speed.step_seconds
    speed = msgspec.structs.replace(  # the same model FLOPs in another time
        plain.speed, tflops=ours.speed.tflops / ratio, mfu=None if ours.speed.mfu is None else ours.speed.mfu / ratio
    )
    return msgspec.structs.replace(case, plain=speed, ratio=ratio, gradient_gap=abs(plain.grad_norm / ours.grad_norm - 1))


class _TimeOne(Protocol):
    """Runs one loop in a process of its own."""

    def __call__(self, loop: Callable[..., Timed], case: Case, ends: float, *further: int) -> Timed: ...


def _time_one(
    folder: Path, size: ModelSize, settings: TrainingSettings, loop: Callable[..., Timed], case: Case, ends: float, *further: int
) -> Timed:
    left = ends - time.monotonic()
    if left < 1:
        raise MeasurementFailed("there was no time left")
    return isolated(loop, folder, size, settings, case, *further, seconds=left, forked=not torch.cuda.is_available())


def time_learner(folder: Path, size: ModelSize, settings: TrainingSettings, case: Case) -> Timed:
    """Measure the learner's steps in this process."""
    batch, rows = _rows(size, settings, case.rows)
    lengths = [row.length for row in batch.rows]
    dtype = "bfloat16" if torch.cuda.is_available() else "float32"
    learner = make_learner(folder, max(settings.micro_batch_tokens, max(lengths)), None, dtype=dtype, **case.options)
    steps = [_timed(partial(learner.step, at_version(batch, number), rows)) for number in range(settings.repetitions + 1)]
    learner.close()
    values = [values_of(report) for report, _, _ in steps]
    return Timed(
        speed=_speed(
            steps,
            sum(lengths),
            statistics.median(each[TFLOPS_PER_RANK.name] for each in values[1:]),
            values[-1].get(MFU.name),
        ),
        grad_norm=values[0][GRAD_NORM.name],
    )


def time_plain_loop(folder: Path, size: ModelSize, settings: TrainingSettings, case: Case, rows_at_once: int) -> Timed:
    """Measure the plain loop's steps in this process; how many model FLOPs they are, the learner knows."""
    batch, rows = _rows(size, settings, case.rows)
    plain = PlainLoop(folder, rows_at_once, device())
    steps = [_timed(partial(plain.step, batch, rows)) for _ in range(settings.repetitions + 1)]
    return Timed(_speed(steps, sum(row.length for row in batch.rows), 0.0, None), grad_norm=steps[0][0])


def _speed(steps: Sequence[tuple[object, float, int]], tokens: int, tflops: float, mfu: float | None) -> Speed:
    """The speed of all steps but the first, which warms up."""
    seconds = statistics.median(took for _, took, _ in steps[1:])
    peak = steps[-1][2] if torch.cuda.is_available() else None
    return Speed(step_seconds=seconds, tokens_per_s=tokens / seconds, tflops=tflops, mfu=mfu, peak_bytes=peak)


def _timed(work: Callable[[], Result]) -> tuple[Result, float, int]:
    """Call ``work``; its result, its seconds, and the most GPU memory meanwhile."""
    synchronize()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    result = work()
    synchronize()
    return result, time.perf_counter() - began, torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def _rows(size: ModelSize, settings: TrainingSettings, kind: str) -> tuple[Batch, Episodes]:
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
