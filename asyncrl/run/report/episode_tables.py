"""Sums up the kept training episodes of a run: lengths, stop reasons, named rewards, and the slowest tools and tasks.

What always holds: turns are read bit by bit, so that memory is bounded by the number of episodes and calls, not by their text.
"""

import re
from collections import Counter
from itertools import islice

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncrl.core.messages import CallOutcome
from asyncrl.episodes.reader import Choice, EpisodeReader
from asyncrl.episodes.schema import Kind
from asyncrl.run.tracking.metric_history import Series

ROWS = 10
"""How many rows a table has at most."""
PROBLEM_CHARACTERS = 160
_NUMBER = re.compile(r"\d+")
_TRAINING = Choice(kind=Kind.TRAIN)


class ToolRow(msgspec.Struct, frozen=True):
    """The calls of one tool: how many, which share failed, and seconds (median, 99th percentile, in all)."""

    tool: str
    calls: int
    failed: float
    p50: float
    p99: float
    total: float


class TaskRow(msgspec.Struct, frozen=True):
    """The episodes of one task: how many, their mean reward, and mean seconds from ticket to reward."""

    task: str
    episodes: int
    reward: float
    seconds: float


class Count(msgspec.Struct, frozen=True):
    """How often something was seen, and which share of all that is."""

    what: str
    count: int
    share: float


class EpisodeTables(msgspec.Struct, frozen=True):
    """The kept training episodes in tables.

    Attributes:
        reported: the mean of each number that environments reported, by training step.
    """

    episodes: int
    stop_reasons: tuple[Count, ...]
    reported: dict[str, Series]
    tools: tuple[ToolRow, ...]
    tasks: tuple[TaskRow, ...]
    problems: tuple[Count, ...]


def episode_tables(reader: EpisodeReader) -> EpisodeTables:
    """Read and sum up the kept training episodes."""
    scalars = ["environment", "step", "task_id", "reward", "stop_reason", "metrics", "queued_s", "reset_s", "scoring_s"]
    rows = reader.table(_TRAINING, [*scalars, "group_id", "sample_index", "part"])
    in_turns, calls = _turns(reader, of_several=pc.count_distinct(rows["environment"]).as_py() > 1)
    # An episode counts once, and takes as long as the turns of all its trajectories.
    names = np.stack([rows[name].to_numpy() for name in ("step", "group_id", "sample_index")], 1)
    episode_of = np.unique(names, axis=0, return_inverse=True)[1].reshape(-1)
    in_turns = np.bincount(episode_of, weights=in_turns)[episode_of] if len(rows) else in_turns
    first = pc.equal(pc.fill_null(rows["part"], 0), 0)
    rows, in_turns = rows.filter(first), in_turns[first.to_numpy()]
    seconds = np.add.reduce([rows[name].to_numpy() for name in scalars[-3:]]) + in_turns
    return EpisodeTables(
        len(rows),
        _counts(Counter(dict(_value_counts(rows["stop_reason"]))), len(rows)),
        _reported(rows),
        _tools(calls),
        _tasks(rows, seconds),
        _problems(calls),
    )


def _turns(reader: EpisodeReader, *, of_several: bool) -> tuple[np.ndarray, pa.Table]:
    """Return the seconds that each trajectory spent in its turns, and all calls.

    Args:
        of_several: whether there are several environments: a tool is then called ``environment.tool``, as in metrics.
    """
    seconds: list[np.ndarray] = [np.zeros(0)]
    calls: list[pa.Table] = []
    for batch in reader.batches(_TRAINING, ["environment", "turns"]):
        turns, episode_of = pc.list_flatten(batch["turns"]), pc.list_parent_indices(batch["turns"]).to_numpy()
        spent = pc.struct_field(turns, "generating_s").to_numpy(zero_copy_only=False) + pc.struct_field(
            turns, "environment_s"
        ).to_numpy(zero_copy_only=False)
        seconds.append(np.bincount(episode_of, weights=spent, minlength=batch.num_rows))
        in_turn = pc.struct_field(turns, "calls")
        flat = pa.Table.from_struct_array(pc.list_flatten(in_turn))
        if of_several:
            environments = batch["environment"].take(pa.array(episode_of[pc.list_parent_indices(in_turn).to_numpy()]))
            named = pc.binary_join_element_wise(environments, flat["tool"], ".")
            named = pc.if_else(pc.equal(flat["tool"], ""), "", named)
            flat = flat.set_column(flat.schema.get_field_index("tool"), "tool", named)
        calls.append(flat)
    empty = pa.table({"tool": pa.array([], pa.string()), "seconds": pa.array([], pa.float32())})
    return np.concatenate(seconds), pa.concat_tables(calls) if calls else empty


def _value_counts(column: pa.ChunkedArray) -> list[tuple[str, int]]:
    return [(each["values"], each["counts"]) for each in pc.value_counts(column).to_pylist()]


def _counts(counted: Counter[str], total: int) -> tuple[Count, ...]:
    return tuple(Count(what, count, count / total) for what, count in counted.most_common(ROWS))


def _reported(rows: pa.Table) -> dict[str, Series]:
    """Return the mean of each metric over the episodes of a training step that report it."""
    metrics = rows["metrics"].combine_chunks()
    if isinstance(metrics, pa.ChunkedArray):  # of no rows
        return {}
    lengths = np.diff(metrics.offsets.to_numpy())
    table = pa.table(
        {"name": metrics.keys, "value": metrics.items, "step": pa.array(np.repeat(rows["step"].to_numpy(), lengths))}
    )
    means = (
        table.group_by(["name", "step"]).aggregate([("value", "mean")]).sort_by([("name", "ascending"), ("step", "ascending")])
    )
    reported: dict[str, list[tuple[int, float]]] = {}
    for name, step, value in zip(*(means[column].to_pylist() for column in ("name", "step", "value_mean")), strict=True):
        if np.isfinite(value):
            reported.setdefault(name, []).append((step, value))
    return {
        name: Series(tuple(step for step, _ in points), tuple(value for _, value in points))
        for name, points in islice(reported.items(), 4 * ROWS)
    }


def _tools(calls: pa.Table) -> tuple[ToolRow, ...]:
    if not len(calls):
        return ()
    failed = pc.cast(pc.not_equal(calls["outcome"], CallOutcome.OK.value), pa.int64())
    grouped = calls.append_column("failed", failed).group_by("tool")
    sums = grouped.aggregate([("seconds", "sum"), ("seconds", "count"), ("failed", "sum")])
    slowest = sums.sort_by([("seconds_sum", "descending")]).slice(0, ROWS).to_pylist()
    found = []
    for each in slowest:
        seconds = calls["seconds"].filter(pc.equal(calls["tool"], each["tool"]))
        p50, p99 = pc.quantile(seconds, [0.5, 0.99]).to_pylist()
        calls_made = each["seconds_count"]
        found.append(ToolRow(each["tool"], calls_made, each["failed_sum"] / calls_made, p50, p99, each["seconds_sum"]))
    return tuple(found)


def _tasks(rows: pa.Table, seconds: np.ndarray) -> tuple[TaskRow, ...]:
    table = rows.select(["task_id", "reward"]).append_column("seconds", pa.array(seconds))
    means = table.group_by("task_id").aggregate([("reward", "count"), ("reward", "mean"), ("seconds", "mean")])
    slowest = means.sort_by([("seconds_mean", "descending")]).slice(0, ROWS).to_pylist()
    return tuple(TaskRow(each["task_id"], each["reward_count"], each["reward_mean"], each["seconds_mean"]) for each in slowest)


def _problems(calls: pa.Table) -> tuple[Count, ...]:
    """Count what went wrong in calls, by tool, outcome and the answer that the model got.

    Problems that differ by numbers alone, such as a position in the text, are one, shown by the most frequent of them.
    """
    if not len(calls):
        return ()
    wrong = calls.filter(pc.not_equal(calls["outcome"], CallOutcome.OK.value))
    problem = pc.utf8_slice_codeunits(pc.fill_null(wrong["problem"], ""), 0, PROBLEM_CHARACTERS)
    called = pc.if_else(pc.equal(wrong["tool"], ""), "(unreadable)", wrong["tool"])
    sentences = pc.binary_join_element_wise(called, wrong["outcome"], problem, ": ")
    alike: dict[str, Counter[str]] = {}
    for sentence, count in _value_counts(sentences) if len(wrong) else ():
        alike.setdefault(_NUMBER.sub("0", sentence), Counter())[sentence] = count
    counted = Counter[str]()
    for several in alike.values():
        ((most, _),) = several.most_common(1)
        counted[most if len(several) == 1 else f"{most} ({len(several)} variants)"] = several.total()
    return _counts(counted, len(calls))
