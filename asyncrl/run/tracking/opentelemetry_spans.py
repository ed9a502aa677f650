"""Training steps and kept episodes as spans of OpenTelemetry, sent to a collector by OTLP over HTTP.

A training step is a trace, with a span for each part of the learner's time; so is a trajectory, with the spans that MLflow has,
but without texts. What always holds: a training step or a trajectory has the same ids however often it is sent; a collector that
is down or slow costs spans and no training: to send them takes at most ``SHARE`` of the time, and what comes between is left out.
"""

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncrl.core.measures.time_split import LEARNER
from asyncrl.run.measures.measure_file import StepMeasure
from asyncrl.run.tracking.traces import UNREADABLE, described, parts_of, sampled, trace_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

logger = logging.getLogger(__name__)

NAME = "opentelemetry"
"""What ``tracking.also`` calls it."""
AGAIN_S = 60.0
"""How long a collector that took no spans is left alone at least, in seconds."""
SHARE = 0.1
"""The most of the time that exports may take: after one that took ``t`` seconds none is made for about ``t / SHARE``."""
AT_ONCE_S = 1.0
"""How many seconds of exports may be made before that holds: the spans of a step and of its episodes come one after another."""
_TOOL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What a tool's name looks like. A model writes the name of a call, so that it may be any text."""


class _Span(NamedTuple):
    """A span before it has ids; ``start_s`` and ``end_s`` count from the beginning of its trace."""

    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, Any]
    failed: bool = False


class OpenTelemetrySpans:
    """Sends spans of one run. ``OTEL_EXPORTER_OTLP_ENDPOINT`` and the other variables of OpenTelemetry say where to and how.

    Its methods are called in one thread. Each but :meth:`end` makes at most one request.

    Args:
        run: the name of the run.
        run_id: its id in MLflow, which a resumed run keeps.
        clock: seconds that have passed.
    """

    def __init__(self, run: str, run_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource

        self._run_id, self._clock = run_id, clock
        # What the user says by OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES comes last, and holds.
        ours = Resource.create({"service.name": "asyncrl", "asyncrl.run": run})
        self._resource = ours.merge(OTELResourceDetector().detect())
        self._exporter = OTLPSpanExporter()
        self._next, self._lost, self._slow, self._left_out = -float("inf"), False, False, 0

    def step(self, measure: StepMeasure, ended_s: float) -> None:
        """Send a training step that ended so many seconds after the epoch."""
        digest = hashlib.blake2b(f"{self._run_id} {measure.step}".encode(), digest_size=16).hexdigest()
        self._send([self._made(digest, ended_s - measure.time.seconds, _of_step(measure))])

    def log(self, file: Path, most: int) -> None:
        """Send up to ``most`` trajectories of a file of kept episodes.

        Raises:
            OSError: the file cannot be read.
        """
        self._send(
            [
                self._made(trace_id(self._run_id, episode), episode["began"].timestamp(), _of_episode(episode))
                for episode in sampled(file, most)
            ]
        )

    def end(self) -> None:
        """Say how many traces were left out."""
        if self._left_out:
            logger.warning("the collector of OpenTelemetry lacks %d traces of this run", self._left_out)

    def _send(self, traces: "Sequence[list[ReadableSpan]]") -> None:
        """Send traces in one request, or leave them out if it is not time."""
        if not traces:
            return
        began = self._clock()
        if began < self._next:
            self._left_out += len(traces)
            if not self._lost and not self._slow:
                self._slow = True
                what = "is slow: traces are left out, so that to send them takes at most"
                logger.warning("the collector of OpenTelemetry %s %g of the time", what, SHARE)
            return
        taken, reason = self._exported([span for trace in traces for span in trace])
        ended = self._clock()
        self._next = max(self._next, began - AT_ONCE_S / SHARE) + (ended - began) / SHARE
        if not taken:
            self._next = max(self._next, ended + AGAIN_S)
            self._left_out += len(traces)
        if taken is self._lost:
            self._lost = not taken
            lost = f"takes no spans (OTEL_EXPORTER_OTLP_ENDPOINT{reason}); they are left out until it does"
            logger.warning("the collector of OpenTelemetry %s", "takes spans again" if taken else lost)

    def _exported(self, spans: "Sequence[ReadableSpan]") -> tuple[bool, str]:
        """Send spans. Return whether they were taken and, if the exporter raised an error, that error after a colon."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            return self._exporter.export(spans) is SpanExportResult.SUCCESS, ""
        except Exception as error:  # noqa: BLE001 - whatever an exporter raises, training goes on without spans
            return False, f": {type(error).__name__}: {error}"

    def _made(self, name: str, began_s: float, of: Iterator[_Span]) -> "list[ReadableSpan]":
        """Make a trace, whose first span has all others in it; ``name`` is 32 hexadecimal digits."""
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

        trace, began, spans = int(name, 16), round(began_s * 1e9), list(of)
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
        name, told = part.name, {"kind": part.kind.lower()}
        if part.kind == "TOOL":
            told["outcome"] = part.outputs["outcome"]
            if name != UNREADABLE and not _TOOL.fullmatch(name):
                name = "unknown tool"
        yield _Span(name, part.start_s, part.end_s, _named(told), part.failed)


def _named(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {f"asyncrl.{name}": value for name, value in attributes.items()}
