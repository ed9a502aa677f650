"""Throughput, cost and latency of the replay buffer as a service, without engines and without a model.

One producer process and one consumer process with the buffer's process between them. They do all that a run does with a
trajectory between its last token and its use: lease, encode, append, commit, take, read, check and decode, trained, advance.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import ray
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from asyncrl.bench.buffer.buffer_actors import RemoteConsumer, RemoteProducer, RemoteTimedBuffer, episode_of
from asyncrl.bench.buffer.buffer_core import core_us_per_trajectory
from asyncrl.bench.buffer.buffer_memory import HeldMemory, held_memory
from asyncrl.core.episode import encode
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.core.ticket import Ticket
from asyncrl.run.folder.buffer_folder import remove_payload_in_memory
from asyncrl.run.host.ray_cluster import start_ray
from asyncrl.run.recipe.compose import compose

RUN_DEADLINE_S = 300.0
"""Seconds that one run of producer and consumer may take."""


class BenchSettings(msgspec.Struct, frozen=True):
    """How the replay buffer is measured.

    Attributes:
        tokens: tokens of a trajectory.
        groups_per_step, group_size: groups of a batch, and trajectories of a group.
        pipeline_depth: training steps that the producer may be ahead of the consumer.
        warm_up, steps: batches before the measurement, and batches that are measured.
        latency_per_s: trajectories per second while latency is measured.
        latency_groups_per_step, latency_steps: groups of a batch, and measured batches, for latency.
        core_outstanding: groups outstanding while the plain buffer class is measured.
        core_steps: batches while the plain buffer class is measured.
        held_groups: groups held while memory is measured.
    """

    tokens: int = 2048
    groups_per_step: int = 64
    group_size: int = 8
    pipeline_depth: int = 4
    warm_up: int = 20
    steps: int = 160
    latency_per_s: float = 1000.0
    latency_groups_per_step: int = 8
    latency_steps: int = 160
    core_outstanding: int = 1_000_000
    core_steps: int = 100
    held_groups: int = 2048


class Throughput(msgspec.Struct, frozen=True):
    """The rate at which trajectories get from producer to consumer."""

    trajectories_per_s: float
    megabytes_per_s: float


class BufferResult(msgspec.Struct, frozen=True):
    """What ``asyncrl bench buffer`` writes.

    Attributes:
        journal_off, journal_on: throughput without and with a journal (``fsync: never``).
        core_us_per_trajectory: time of the bookkeeping for one trajectory in the plain buffer class, in microseconds.
        latency_p50_ms, latency_p99_ms: time from handing in a trajectory until it may be taken, with a journal.
        latency_p99_ms_journal_off: the same without a journal.
        answer_p99_ms: time from handing in a trajectory until the buffer has answered, with a journal.
        held_per_payload_byte: bytes of memory and files that held trajectories take, per byte of their payload.
        bytes_per_trajectory: size of an encoded trajectory.
    """

    journal_off: Throughput
    journal_on: Throughput
    core_us_per_trajectory: float
    latency_p50_ms: float
    latency_p99_ms: float
    latency_p99_ms_journal_off: float
    answer_p99_ms: float
    held_per_payload_byte: HeldMemory
    bytes_per_trajectory: int
    settings: BenchSettings


def run(json_file: Path, console: Console, settings: BenchSettings) -> BufferResult:
    """Measure everything, report progress on ``console``, and write ``json_file``."""
    console.print(f"Measuring the memory of {settings.held_groups:,} groups")
    with _folder() as folder:
        held = held_memory(_deep_recipe(settings, settings.held_groups, settings.held_groups), settings.tokens, folder)
    console.print(f"Measuring the bookkeeping with {settings.core_outstanding:,} groups outstanding")
    core = core_us_per_trajectory(_deep_recipe(settings, settings.core_outstanding, settings.core_steps), settings.core_steps)
    ticket = Ticket(GroupId(0), Task(id=TaskId("0"), prompt=""), (0,), 0, PolicyVersion(0))
    size = len(encode(episode_of(ticket, 0, settings.tokens, PolicyVersion(0))))
    rates = {}
    start_ray()
    try:
        for journal in ("none", "append_only"):
            console.print(f"Measuring throughput over {settings.steps} batches, journal: {journal}")
            rows, seconds, _, _ = _produce_and_consume(_recipe(settings, journal), settings, settings.steps, None)
            rates[journal] = Throughput(rows / seconds, rows * size / seconds / 1e6)
        console.print(f"Measuring latency at {settings.latency_per_s:,.0f} trajectories per second")
        latency = {journal: _latency_ms(settings, journal) for journal in ("none", "append_only")}
    finally:
        ray.shutdown()
    off, on = latency["none"], latency["append_only"]
    result = BufferResult(
        journal_off=rates["none"],
        journal_on=rates["append_only"],
        core_us_per_trajectory=core,
        latency_p50_ms=on.p50,
        latency_p99_ms=on.p99,
        latency_p99_ms_journal_off=off.p99,
        answer_p99_ms=on.answer_p99,
        held_per_payload_byte=held,
        bytes_per_trajectory=size,
        settings=settings,
    )
    json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    return result


def view(result: BufferResult) -> RenderableType:
    """The result as a table."""
    table = Table(title="Replay buffer", title_justify="left", show_header=False, border_style="dim", box=box.ROUNDED)
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, rate in (("without a journal", result.journal_off), ("with a journal", result.journal_on)):
        table.add_row(name, f"{rate.trajectories_per_s:,.0f} trajectories/s, {rate.megabytes_per_s:,.0f} MB/s")
    table.add_row("bookkeeping", f"{result.core_us_per_trajectory:.1f} us per trajectory")
    held = result.held_per_payload_byte
    table.add_row("memory", f"{held.at_first:.2f} times the payload, {held.refilled:.2f} after half of it was replaced")
    table.add_row("until takeable", f"{result.latency_p50_ms:.2f} ms median, {result.latency_p99_ms:.2f} ms 99th percentile")
    table.add_row("the same without a journal", f"{result.latency_p99_ms_journal_off:.2f} ms 99th percentile")
    table.add_row("until answered", f"{result.answer_p99_ms:.2f} ms 99th percentile")
    return table


def cost_of_trajectories(settings: BenchSettings, journal: str) -> float:
    """Processor time that the buffer's process takes per trajectory, in seconds, with or without a journal; needs Ray."""
    return _produce_and_consume(_recipe(settings, journal), settings, settings.steps, None)[3]


class _Latency(msgspec.Struct, frozen=True):
    """Milliseconds from handing in a trajectory: until it can be taken (median and 99th percentile), and until the answer."""

    p50: float
    p99: float
    answer_p99: float


def _latency_ms(settings: BenchSettings, journal: str) -> _Latency:
    calm = msgspec.structs.replace(settings, groups_per_step=settings.latency_groups_per_step, steps=settings.latency_steps)
    _, _, times, _ = _produce_and_consume(_recipe(calm, journal), calm, calm.steps, calm.latency_per_s)
    warm = sorted(times)[calm.warm_up * calm.groups_per_step * calm.group_size :]
    p50, p99 = np.percentile([takeable - begin for begin, takeable, _ in warm], [50, 99]) * 1e3
    answer = np.percentile([answered - begin for begin, _, answered in warm], 99) * 1e3
    return _Latency(float(p50), float(p99), float(answer))


def _recipe(settings: BenchSettings, journal: str) -> Recipe:
    return compose(
        "quickstart",
        [
            "name=bench-buffer",
            f"steps={_batches(settings)}",
            f"batch.groups_per_step={settings.groups_per_step}",
            f"batch.group_size={settings.group_size}",
            f"buffer.pipeline_depth={settings.pipeline_depth}",
            f"buffer.max_staleness={2 * settings.pipeline_depth}",
            f"+buffer.journal={{kind: {journal}}}",
        ],
    )


def _batches(settings: BenchSettings) -> int:
    """Number of training steps in the recipe: more than are done, so that the producer never runs out of tickets."""
    return 2 * (settings.warm_up + settings.steps) + settings.pipeline_depth


def _deep_recipe(settings: BenchSettings, outstanding: int, steps: int) -> Recipe:
    """A recipe whose pipeline depth allows ``outstanding`` groups, for ``steps`` batches."""
    depth = -(-outstanding // settings.groups_per_step) - 1
    return compose(
        "quickstart",
        [
            "name=bench-buffer",
            f"steps={depth + 2 * steps + 1}",
            f"batch.groups_per_step={settings.groups_per_step}",
            f"batch.group_size={settings.group_size}",
            f"buffer.pipeline_depth={depth}",
            f"buffer.max_staleness={depth + steps}",
        ],
    )


def _produce_and_consume(
    recipe: Recipe, settings: BenchSettings, steps: int, per_second: float | None
) -> tuple[int, float, list[tuple[float, float, float]], float]:
    """Measure ``steps`` batches between a producer and a consumer.

    Args:
        per_second: trajectories handed in per second; None for as many as possible.

    Returns:
        The number of trajectories trained, the seconds this took, and for each trajectory the times, in seconds, at which it was
        handed in, could be taken, and was answered; and the processor time of the buffer's process per trajectory, in seconds.
    """
    with _folder() as folder:
        buffer: Any = RemoteTimedBuffer.options(num_cpus=0).remote(recipe, folder, folder.name, folder / "buffer.log")
        ray.get(buffer.ready.remote(), timeout=RUN_DEADLINE_S)
        ray.get(buffer.take_over.remote(), timeout=RUN_DEADLINE_S)
        producer: Any = RemoteProducer.options(num_cpus=0, max_concurrency=10).remote(
            recipe, buffer, settings.tokens, folder / "producer.log"
        )
        consumer: Any = RemoteConsumer.options(num_cpus=0).remote(recipe, buffer, producer, folder / "consumer.log")
        begin = ray.get(buffer.worked.remote(), timeout=RUN_DEADLINE_S)
        producing = producer.run.remote(per_second)
        rows, seconds = ray.get(consumer.run.remote(settings.warm_up, steps), timeout=RUN_DEADLINE_S)
        ray.get(producer.stop.remote(), timeout=RUN_DEADLINE_S)
        handed_in = ray.get(producing, timeout=RUN_DEADLINE_S)
        worked = ray.get(buffer.worked.remote(), timeout=RUN_DEADLINE_S) - begin
        takeable = ray.get(buffer.takeable_at.remote(), timeout=RUN_DEADLINE_S)
        for actor in (producer, consumer, buffer):
            ray.kill(actor)
    times = [(begin, takeable[key], answered) for key, (begin, answered) in handed_in.items()]
    return rows, seconds, times, worked / len(times)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-buffer-", dir=".") as folder:
        try:
            yield Path(folder).resolve()
        finally:
            remove_payload_in_memory(Path(folder).name)
