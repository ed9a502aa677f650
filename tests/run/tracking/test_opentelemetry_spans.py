"""Spans of training steps and episodes, at a real server of OTLP; that a run sends them is seen in test_tracking.py."""

import logging
from pathlib import Path

import pytest
from made_measure import measure
from otlp_collector import collector, use
from played_episodes import episode, words

from asyncrl.episodes.files import evaluation_file
from asyncrl.episodes.schema import Kind
from asyncrl.episodes.writer import table, untrained, write
from asyncrl.run.tracking.opentelemetry_spans import AGAIN_S, OpenTelemetrySpans


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
    kept = untrained(episode(prompt=3, turns=2), 0, Kind.EVALUATION, step=None, version=5, source=None)
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
    }
    assert {span.name for span in got.spans if span.status.code == span.status.STATUS_CODE_ERROR} == {"unreadable call"}
    assert got.spans[0].start_time_unix_nano == 1_700_000_000_500_000_000
    said = {each.key: each.value for span in got.spans for each in span.attributes}
    assert (said["asyncrl.reward"].double_value, said["asyncrl.version"].int_value) == (0.5, 5)
    assert not any("t5" in each.string_value for each in said.values())


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
    told = [record.getMessage() for record in caplog.records if record.name.startswith("asyncrl")]
    assert [line.partition(" (")[0] for line in told] == [
        "the collector of OpenTelemetry takes no spans",
        "the collector of OpenTelemetry takes spans again",
    ]
