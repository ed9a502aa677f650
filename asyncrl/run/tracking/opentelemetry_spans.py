"""Training steps and kept episodes as spans of OpenTelemetry, sent to a collector by OTLP over HTTP.

A training step is a trace, with a span for each part of the learner's time; so is a trajectory, with the spans that MLflow has,
but without texts. What always holds: a training step or a trajectory has the same ids however often it is sent; a collector that
is down costs its spans and no training.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncrl.core.measures.time_split import LEARNER
from asyncrl.run.measures.measure_file import StepMeasure
from asyncrl.run.tracking.traces import described, parts_of, sampled, trace_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

logger = logging.getLogger(__name__)

NAME = "opentelemetry"
"""What ``tracking.also`` calls it."""
AGAIN_S = 60.0
"""How long a collector that took no spans is left alone, in seconds: to ask it takes ten."""
_TOLD = ("outcome", "problem")
"""What is said of a call of a tool."""


class _Span(NamedTuple):
    """A span before it has ids; ``start_s`` and ``end_s`` count from the beginning of its trace."""

    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, Any]
    failed: bool = False


class OpenTelemetrySpans:
    """Sends spans of one run. ``OTEL_EXPORTER_OTLP_ENDPOINT`` and the other variables of OpenTelemetry say where to and how.

    Its methods are called in one thread.

    Args:
        run: the name of the run.
        run_id: its id in MLflow, which a resumed run keeps.
        clock: seconds that have passed.
    """

    def __init__(self, run: str, run_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        self._run_id, self._clock = run_id, clock
        # What the user says by OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES comes last, and holds.
        self._resource = Resource({"service.name": "asyncrl", "asyncrl.run": run}).merge(Resource.create())
        self._exporter = OTLPSpanExporter()
        self._next, self._lost = -float("inf"), False

    def step(self, measure: StepMeasure, ended_s: float) -> None:
        """Send a training step that ended so many seconds after the epoch."""
        digest = hashlib.blake2b(f"{self._run_id} {measure.step}".encode(), digest_size=16).hexdigest()
        self._send(digest, ended_s - measure.time.seconds, _of_step(measure))

    def log(self, file: Path, most: int) -> None:
        """Send up to ``most`` trajectories of a file of kept episodes.

        Raises:
            OSError: the file cannot be read.
        """
        for episode in sampled(file, most):
            self._send(trace_id(self._run_id, episode), episode["began"].timestamp(), _of_episode(episode))

    def _send(self, trace: str, began_s: float, spans: Iterator[_Span]) -> None:
        """Send a trace, whose first span has all others in it."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        if self._clock() < self._next:
            return
        made = self._made(int(trace, 16), round(began_s * 1e9), list(spans))
        lost = self._exporter.export(made) is not SpanExportResult.SUCCESS
        if lost:
            self._next = self._clock() + AGAIN_S
        if lost != self._lost:
            self._lost = lost
            what = (
                "takes no spans (OTEL_EXPORTER_OTLP_ENDPOINT); they are left out until it does" if lost else "takes spans again"
            )
            logger.warning("the collector of OpenTelemetry %s", what)

    def _made(self, trace: int, began: int, spans: Sequence[_Span]) -> "list[ReadableSpan]":
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

        contexts = [
            SpanContext(trace, _number(trace, number), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
            for number in range(len(spans))
        ]
        return [
            ReadableSpan(
                span.name,
                context=context,
                parent=contexts[0] if number else None,
                resource=self._resource,
                attributes=span.attributes,
                start_time=began + round(span.start_s * 1e9),
                end_time=began + round(span.end_s * 1e9),
                status=Status(StatusCode.ERROR if span.failed else StatusCode.OK),
            )
            for number, (span, context) in enumerate(zip(spans, contexts, strict=True))
        ]


def _number(trace: int, number: int) -> int:
    """The id of a span of a trace."""
    return int.from_bytes(hashlib.blake2b(f"{trace} {number}".encode(), digest_size=8).digest())


def _of_step(measure: StepMeasure) -> Iterator[_Span]:
    """Yield the span of a training step, and those of its parts, in the order in which they happen."""
    took, seconds = measure.time.learner, measure.time.seconds
    counted = {"step": measure.step, "rows": measure.rows, "trained_tokens": measure.time.trained_tokens}
    stale = {"staleness_mean": measure.staleness_mean, "staleness_max": measure.staleness_max}
    yield _Span(f"training step {measure.step}", 0.0, seconds, _named({**counted, **stale, "engines": measure.engines}))
    at = 0.0
    for part in ("waiting", *(part for part in LEARNER if part not in ("waiting", "other"))):
        lasts = getattr(took, part)
        if lasts:
            yield _Span(part, at, at + lasts, {})
        at += lasts


def _of_episode(episode: dict[str, Any]) -> Iterator[_Span]:
    """Yield the span of a trajectory, and those of its turns and calls."""
    *parts, whole = parts_of(episode)
    yield _Span(whole.name, whole.start_s, whole.end_s, _named(described(episode)))
    for part in parts:
        told = {name: part.outputs[name] for name in _TOLD if part.outputs[name]} if part.kind == "TOOL" else {}
        yield _Span(part.name, part.start_s, part.end_s, _named({"kind": part.kind.lower(), **told}), part.failed)


def _named(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {f"asyncrl.{name}": value for name, value in attributes.items()}
