"""Kept episodes as MLflow traces: one trace a trajectory, a span for each turn and for each tool call.

What always holds: a trajectory has the same trace however often it is logged, so that a resumed run has none twice. The spans of
a turn are as long as the episode says. Where they begin follows from the order of what happened, since the order is all that an
episode tells; so time between two turns that belongs to neither comes at the end.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from asyncrl.core.messages import CallOutcome

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Span

_COLUMNS = (
    *("kind", "step", "version", "environment", "source", "task_id", "group_id", "sample_index", "part", "role", "stop_reason"),
    *("reward", "metrics", "prompt", "turns", "began", "queued_s", "reset_s", "scoring_s"),
)
_TAGGED = (
    *("kind", "step", "version", "environment", "source", "task_id", "group_id", "sample_index", "part", "role"),
    *("reward", "stop_reason"),
)
UNREADABLE = "unreadable call"
"""Name of a call that could not be read, so that it has no tool."""
_LONGEST_TAG = 250
"""MLflow takes no longer value."""
_LINKED_AT_ONCE = 100
"""The most traces that MLflow links to a run in one call."""


class Part(NamedTuple):
    """A span before anybody has it; ``start_s`` and ``end_s`` count from the beginning of the episode."""

    name: str
    kind: str
    start_s: float
    end_s: float
    inputs: Any
    outputs: Any
    failed: bool = False


class Traces:
    """Logs traces to one MLflow run.

    Args:
        client: client of the store.
        run_id: the run that the traces belong to.
    """

    def __init__(self, client: "MlflowClient", run_id: str) -> None:
        # What MLflow offers for tracing makes spans as they happen, and sends them by threads of its own, which swallow errors.
        from mlflow.tracing.client import TracingClient

        self._spans = TracingClient(client.tracking_uri)
        self._client, self._run_id = client, run_id
        self._experiment_id = client.get_run(run_id).info.experiment_id

    def log(self, file: Path, most: int) -> None:
        """Log up to ``most`` trajectories in a file of kept episodes, evenly spread over it.

        Raises:
            OSError: the file cannot be read.
            MlflowException: the store refuses them.
        """
        episodes = {trace_id(self._run_id, episode): episode for episode in sampled(file, most)}
        self._spans.log_spans(self._experiment_id, [span for name, one in episodes.items() for span in _spans(name, one)])
        names = [f"tr-{name}" for name in episodes]
        for start in range(0, len(names), _LINKED_AT_ONCE):
            self._client.link_traces_to_run(names[start : start + _LINKED_AT_ONCE], self._run_id)


def sampled(file: Path, most: int) -> list[dict[str, Any]]:
    """Return up to ``most`` trajectories of a file of kept episodes, evenly spread over it: what is traced, by column.

    Raises:
        OSError: the file cannot be read.
    """
    there = pq.read_schema(file).names  # files of earlier releases lack what is of trajectories
    kept = pq.read_table(file, columns=[name for name in _COLUMNS if name in there], use_threads=False)
    chosen = np.linspace(0, len(kept) - 1, min(most, len(kept))).astype(int)
    rows: list[dict[str, Any]] = kept.take(chosen).to_pylist(maps_as_pydicts="strict")
    return rows


def trace_id(run_id: str, episode: dict[str, Any]) -> str:
    """Name a trace by what identifies the trajectory in its run: 32 hexadecimal digits."""
    identity = [run_id, *(episode[name] for name in ("kind", "step", "version", "group_id", "sample_index", "task_id"))]
    if episode.get("part"):  # the first is named as when an episode was one trajectory
        identity.append(episode["part"])
    return hashlib.blake2b(json.dumps(identity).encode(), digest_size=16).hexdigest()


def _spans(trace_id: str, episode: dict[str, Any]) -> Iterator["Span"]:
    began = round(episode["began"].timestamp() * 1e9)
    *parts, whole = parts_of(episode)
    tags = {name: _tag(value) for name, value in described(episode).items()}
    root = {f"mlflow.traceTag.{name}": value for name, value in tags.items()} | {"mlflow.traceTag.mlflow.traceName": whole.name}
    yield _span(trace_id, 0, whole, began, root)
    for number, part in enumerate(parts, 1):
        yield _span(trace_id, number, part, began, {})


def described(episode: dict[str, Any]) -> dict[str, Any]:
    """What is said of a whole trajectory, by name."""
    return {name: episode[name] for name in _TAGGED if episode.get(name) is not None and (name != "role" or episode[name])}


def parts_of(episode: dict[str, Any]) -> Iterator[Part]:
    """Yield the parts of an episode in the order in which they happened, and the whole episode last."""
    now, given = episode["queued_s"] + episode["reset_s"], episode["prompt"]
    for number, turn in enumerate(episode["turns"], 1):
        sampled = now + turn["generating_s"]
        yield Part(f"turn {number}", "LLM", now, sampled, given, turn["text"])
        now = sampled
        for call in turn["calls"]:
            outputs = {"outcome": call["outcome"], "problem": call["problem"]}
            # Calls of one turn may run side by side: each begins where the turn was sampled.
            name, failed = call["tool"] or UNREADABLE, call["outcome"] != CallOutcome.OK
            yield Part(name, "TOOL", now, now + call["seconds"], None, outputs, failed)
        now, given = sampled + turn["environment_s"], turn["answer"]
    now += episode["scoring_s"]
    last = episode["turns"][-1]["text"] if episode["turns"] else ""
    outputs = {name: episode[name] for name in ("reward", "stop_reason", "metrics")} | {"text": last}
    yield Part(f"{episode['kind']} {episode['task_id']}", "AGENT", 0.0, now, episode["prompt"], outputs)


def _span(trace_id: str, number: int, part: Part, began: int, attributes: dict[str, Any]) -> "Span":
    from mlflow.entities import Span

    known = {
        "mlflow.traceRequestId": f"tr-{trace_id}",
        "mlflow.spanType": part.kind,
        "mlflow.spanInputs": part.inputs,
        "mlflow.spanOutputs": part.outputs,
    }
    return Span.from_dict(
        {
            "name": part.name,
            "trace_id": _base64(trace_id),
            "span_id": _base64(f"{number + 1:016x}"),
            "parent_span_id": _base64(f"{1:016x}") if number else None,
            "start_time_unix_nano": began + round(part.start_s * 1e9),
            "end_time_unix_nano": began + round(part.end_s * 1e9),
            "status": {"code": "STATUS_CODE_ERROR" if part.failed else "STATUS_CODE_OK", "message": ""},
            "attributes": {name: json.dumps(value) for name, value in (known | attributes).items()},
            "events": [],
        }
    )


def _base64(digits: str) -> str:
    return base64.b64encode(bytes.fromhex(digits)).decode()


def _tag(value: object) -> str:
    return f"{value:g}"[:_LONGEST_TAG] if isinstance(value, float) else str(value)[:_LONGEST_TAG]
