"""Spans of training steps and episodes, at a real server of OTLP; that a run sends them is seen in test_tracking.py."""

import logging
from pathlib import Path

import msgspec
import pytest
from made_measure import measure
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from otlp_collector import collector, use
from played_episodes import episode, words

from asyncrl.core.messages import CallOutcome, CallRecord
from asyncrl.episodes.files import evaluation_file
from asyncrl.episodes.schema import Kind
from asyncrl.episodes.writer import table, untrained, write
from asyncrl.run.tracking.opentelemetry_spans import AGAIN_S, AT_ONCE_S, SHARE, OpenTelemetrySpans


def test_a_step_is_a_trace_whose_spans_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as (got, address):
        use(address, monkeypatch)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
        for _ in range(2):  # as a resumed run does
            OpenTelemetrySpans("run-1", "0123").step(measure(3), ended_s=1_700_000_008.0)
    assert (got.resource["service.name"], got.resource["asyncrl.run"]) == ("mine", "run-1")
    once, again = got.spans[: len(got.spans) // 2], got.spans[len(got.spans) // 2 :]
    assert [span.span_id for span in once] == [span.span_id for span in again]
    whole, *parts = once
    assert {span.trace_id for span in got.spans} == {whole.trace_id}
    assert len({span.span_id for span in once}) == len(once)
    assert (whole.name, whole.parent_span_id) == ("training step 3", b"")
    assert (whole.start_time_unix_nano, whole.end_time_unix_nano) == (1_700_000_000 * 10**9, 1_700_000_008 * 10**9)
    at = whole.start_time_unix_nano
    expected = {
        "waiting": 1.0,
        "data": 0.5,
        "forward": 1.5,
        "backward": 1.5,
        "optimizer": 0.5,
        "writing": 0.25,
        "delivering": 0.5,
    }
    for part, (name, seconds) in zip(parts, expected.items(), strict=True):
        assert (part.name, part.parent_span_id, part.start_time_unix_nano) == (name, whole.span_id, at)
        at = part.end_time_unix_nano
        assert at - part.start_time_unix_nano == seconds * 1e9


def test_an_episode_is_a_trace_without_its_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = evaluation_file(tmp_path, 5, "generator-0")
    played = episode(prompt=3, turns=2)
    (told,) = played.trajectories
    turn = told.turns[0]
    calls = (*turn.calls, CallRecord("my name is Ann", 0.5, CallOutcome.MALFORMED, "no tool 'my name is Ann'"))
    told = msgspec.structs.replace(told, turns=(msgspec.structs.replace(turn, calls=calls), *told.turns[1:]))
    played = msgspec.structs.replace(played, trajectories=(told,))
    kept = untrained(played, 0, Kind.EVALUATION, step=None, version=5, source=None)
    write(table([kept], lambda source: "w", words), file)
    with collector() as (got, address):
        use(address, monkeypatch)
        OpenTelemetrySpans("run-1", "0123").log(file, 8)
    assert got.seen() == {
        "evaluation task-0": 6.75,
        "turn 1": 2.0,
        "turn 2": 2.0,
        "calculator": 0.25,
        "unreadable call": 0.0,
        "unknown tool": 0.5,
    }
    assert {span.name for span in got.spans if span.status.code == span.status.STATUS_CODE_ERROR} == {
        "unreadable call",
        "unknown tool",
    }
    assert got.spans[0].start_time_unix_nano == 1_700_000_000_500_000_000
    said = {each.key: each.value for span in got.spans for each in span.attributes}
    assert (said["asyncrl.reward"].double_value, said["asyncrl.version"].int_value) == (0.5, 5)
    assert "asyncrl.problem" not in said
    texts = [each.value.string_value for span in got.spans for each in span.attributes]
    assert not any(secret in text for text in texts for secret in ("t5", "Ann", "JSON"))


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "asyncrl"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs"}, "theirs"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs", "OTEL_SERVICE_NAME": "mine"}, "mine"),
    ],
)
def test_the_service_is_called_as_the_user_says(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str) -> None:
    for variable in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    exporter, spans = made_with_exporter()
    spans.step(measure(1), 1_700_000_000.0)
    ((span, *_),) = exporter.got
    assert (span.resource.attributes["service.name"], span.resource.attributes["asyncrl.run"]) == (name, "run-1")


class Exporter:
    """Takes spans after so many seconds of a clock of its own, or raises."""

    def __init__(self) -> None:
        self.now, self.takes_s, self.raises = 0.0, 0.0, False
        self.got: list[list[ReadableSpan]] = []

    def export(self, spans: list[ReadableSpan]) -> SpanExportResult:
        self.now += self.takes_s
        if self.raises:
            raise ConnectionError("gone")
        self.got.append(spans)
        return SpanExportResult.SUCCESS


def made_with_exporter() -> tuple[Exporter, OpenTelemetrySpans]:
    exporter = Exporter()
    spans = OpenTelemetrySpans("run-1", "0123", clock=lambda: exporter.now)
    spans._exporter = exporter
    return exporter, spans


def told_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("asyncrl")]


def test_an_exporter_that_raises_costs_its_spans(caplog: pytest.LogCaptureFixture) -> None:
    exporter, spans = made_with_exporter()
    exporter.raises = True
    for step in (1, 2):
        spans.step(measure(step), 1_700_000_000.0)
    exporter.now += AGAIN_S
    spans.step(measure(3), 1_700_000_000.0)
    exporter.raises = False
    exporter.now += AGAIN_S
    spans.step(measure(4), 1_700_000_000.0)
    spans.end()
    assert [trace[0].name for trace in exporter.got] == ["training step 4"]
    assert told_in(caplog) == [
        "the collector of OpenTelemetry takes no spans (OTEL_EXPORTER_OTLP_ENDPOINT: ConnectionError: gone); "
        "they are left out until it does",
        "the collector of OpenTelemetry takes spans again",
        "the collector of OpenTelemetry lacks 3 traces of this run",
    ]


@pytest.mark.parametrize("raises", [False, True])
def test_a_slow_collector_takes_no_more_than_its_share_of_the_time(raises: bool, caplog: pytest.LogCaptureFixture) -> None:
    exporter, spans = made_with_exporter()
    exporter.takes_s, exporter.raises = 50.0, raises
    spans.step(measure(1), 1_700_000_000.0)
    exporter.takes_s, exporter.raises = 0.0, False
    exporter.now = (50.0 - AT_ONCE_S) / SHARE - 1.0
    for step in (2, 3):
        spans.step(measure(step), 1_700_000_000.0)
    exporter.now += 2.0
    for step in (4, 5):
        spans.step(measure(step), 1_700_000_000.0)
    spans.end()
    sent = [trace[0].name for trace in exporter.got]
    assert sent == [f"training step {step}" for step in ((4, 5) if raises else (1, 4, 5))]
    assert told_in(caplog)[-1] == f"the collector of OpenTelemetry lacks {3 if raises else 2} traces of this run"
    assert sum("is slow" in line for line in told_in(caplog)) == (0 if raises else 1)


def test_the_trajectories_of_a_file_come_in_one_request(tmp_path: Path) -> None:
    file = evaluation_file(tmp_path, 5, "generator-0")
    kept = [untrained(episode(sample=sample), 0, Kind.EVALUATION, step=None, version=5, source=None) for sample in range(3)]
    write(table(kept, lambda source: "w", words), file)
    exporter, spans = made_with_exporter()
    spans.log(file, 8)
    (sent,) = exporter.got
    assert len({span.context.trace_id for span in sent}) == sum(span.parent is None for span in sent) == 3


def test_a_collector_that_takes_nothing_is_told_of_once_and_asked_a_minute_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    with collector() as (got, address), caplog.at_level(logging.WARNING, "asyncrl"):
        use(address, monkeypatch)
        spans = OpenTelemetrySpans("run-1", "0123", clock=lambda: now)
        got.refuses = True
        for step in (1, 2):
            spans.step(measure(step), 1_700_000_000.0)
        assert got.asked == 1
        now = AGAIN_S
        spans.step(measure(3), 1_700_000_000.0)
        assert got.asked == 2
        got.refuses, now = False, 2 * AGAIN_S
        for step in (4, 5):
            spans.step(measure(step), 1_700_000_000.0)
    assert [span.name for span in got.spans if not span.parent_span_id] == ["training step 4", "training step 5"]
    assert [line.partition(" (")[0] for line in told_in(caplog)] == [
        "the collector of OpenTelemetry takes no spans",
        "the collector of OpenTelemetry takes spans again",
    ]
