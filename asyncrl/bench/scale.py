"""Says what limits the throughput of a run with many engines: parts are measured on this machine, and many of them simulated.

Measured: the processor time of the buffer's process for one trajectory, without and with a journal; the time in which a rank
decodes one; and the rate at which weights pass Ray's object store. Simulated: engines, episodes and publications around the real
buffer, with those costs. Everything else is an :class:`Assumptions`, which the result repeats.
"""

import math
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import ray
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from asyncrl.bench.buffer.buffer import BenchSettings, cost_of_trajectories
from asyncrl.bench.buffer.buffer_actors import episode_of
from asyncrl.bench.simulated_pool.figures import StalenessTally
from asyncrl.bench.simulated_pool.pool import Pool, Shape, Varied
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.episode import decode, encode
from asyncrl.core.files.memory_files import memory_file_system
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.recipe.buffer import BufferConfig
from asyncrl.core.recipe.schema import BatchConfig
from asyncrl.core.task import Task
from asyncrl.core.ticket import Ticket
from asyncrl.run.host.ray_cluster import start_ray
from asyncrl.run.publications.ray_pieces import AT_ONCE, LARGEST_BYTES, PieceFetch, put_pieces
from asyncrl.simulation.episodes import simulated_tasks

ENGINES = (16, 256, 4096)
STEPS, WARM_UP = 5, 2
"""Training steps that are simulated, and how many of them do not count."""
ALONE = 16
"""Engines that are simulated to find out what engines deliver when nothing limits them."""
_LEARNER_SHARE = 0.9
"""Share of the time that the learner trains if the engines deliver what they can."""
_READINGS = 200
_TRANSFER_BYTES = 128 << 20
_DEADLINE_S = 120.0


class Assumptions(msgspec.Struct, frozen=True):
    """What is not measured.

    Attributes:
        slots: episodes that an engine plays at once.
        shortest_s, longest_s, tail: durations of episodes, a Pareto distribution.
        tokens: tokens of a trajectory.
        group_size: episodes of a group.
        in_flight: training steps' worth of episodes that the engines play at once.
        engines_a_node: engines that share a node and its mirror.
        senders: nodes that share the line of a node that has a piece, if there are several.
        engines_a_rank: engines for each data-parallel rank of the learner.
        weights_bytes: size of a publication: 8 billion parameters of two bytes.
        line_bytes_s: what a node sends and receives a second: 100 Gbit/s.
        swap_s: how long the exchange of weights takes an engine once they have arrived.
    """

    slots: int = 64
    shortest_s: float = 20.0
    longest_s: float = 1200.0
    tail: float = 1.5
    tokens: int = 2048
    group_size: int = 8
    in_flight: float = 2.0
    engines_a_node: int = 8
    senders: int = 2
    engines_a_rank: int = 4
    weights_bytes: int = 16_000_000_000
    line_bytes_s: float = 12.5e9
    swap_s: float = 1.0


class Costs(msgspec.Struct, frozen=True):
    """What is measured on this machine, each with the real parts.

    Attributes:
        buffer_us, buffer_journal_us: processor time of the buffer's process per trajectory without and with a journal, calls over
            TCP included, in microseconds.
        intake_us: time in which a rank decodes one trajectory, in microseconds.
        trajectory_bytes: size of an encoded trajectory.
        store_bytes_s: rate at which weights are put into Ray's object store and taken out of it, without a network in between.
    """

    buffer_us: float
    buffer_journal_us: float
    intake_us: float
    trajectory_bytes: int
    store_bytes_s: float


class Scale(msgspec.Struct, frozen=True):
    """A simulated run with ``engines``. Shares are of 1; what has the largest is what limits the run.

    Attributes:
        wanted_per_s: trajectories a second if nothing but the engines limited them.
        trajectories_per_s: trajectories that were trained a second.
        buffer_share, buffer_journal_share: share of its time that the buffer's process works, at the wanted rate.
        publish_s: from the learner's last byte until the last engine has the weights.
        publish_share: ``publish_s`` as a share of a training step.
        rounds: how often the nodes that have a piece become twice as many, until the last one has it.
        payload_mb_s: trajectories that reach the learner, in MB a second.
        payload_share: that as a share of one node's line, through which it goes if all shards are on one node.
        intake_share: share of their time that the learner's ranks decode trajectories.
        staleness_mean: of the tokens in the losses, in policy versions.
        limit: what limits the run, and what helps.
    """

    engines: int
    wanted_per_s: float
    trajectories_per_s: float
    buffer_share: float
    buffer_journal_share: float
    publish_s: float
    publish_share: float
    rounds: int
    payload_mb_s: float
    payload_share: float
    intake_share: float
    staleness_mean: float
    limit: str


class ScaleResult(msgspec.Struct, frozen=True):
    """What ``asyncrl bench scale`` writes."""

    costs: Costs
    assumptions: Assumptions
    scales: tuple[Scale, ...]


def run(json_file: Path, console: Console, engines: Sequence[int] = ENGINES) -> ScaleResult:
    """Measure the parts, simulate each number of engines, and write ``json_file``."""
    assumptions = Assumptions()
    console.print("Measuring the buffer, a rank's intake and Ray's object store")
    costs = measure(assumptions)
    scales = []
    for count in engines:
        console.print(f"Simulating {count:,} engines")
        scales.append(simulate(count, costs, assumptions))
    result = ScaleResult(costs, assumptions, tuple(scales))
    json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    return result


def measure(assumptions: Assumptions) -> Costs:
    """Measure the real parts."""
    settings = BenchSettings(tokens=assumptions.tokens, group_size=assumptions.group_size, warm_up=2, steps=20)
    start_ray()
    try:
        without, with_journal = (cost_of_trajectories(settings, journal) for journal in ("none", "append_only"))
        rate = _store_rate()
    finally:
        ray.shutdown()
    ticket = Ticket(GroupId(0), Task(id=TaskId("0"), prompt=""), (0,), 0, PolicyVersion(0))
    encoded = encode(episode_of(ticket, 0, assumptions.tokens, PolicyVersion(0)))
    begin = time.perf_counter()
    for _ in range(_READINGS):
        decode(encoded)
    intake = (time.perf_counter() - begin) / _READINGS
    return Costs(without * 1e6, with_journal * 1e6, intake * 1e6, len(encoded), rate)


def _store_rate() -> float:
    version, memory = PolicyVersion(1), memoryview(bytearray(_TRANSFER_BYTES))
    with tempfile.NamedTemporaryFile(dir=memory_file_system(), prefix="asyncrl-bench-scale-") as file:
        file.truncate(_TRANSFER_BYTES)
        begin = time.perf_counter()
        pieces = put_pieces(file.name, _TRANSFER_BYTES)
        PieceFetch(version, {0: pieces}, {0: memory}, "the benchmark", _DEADLINE_S, threading.Event()).run()
        return _TRANSFER_BYTES / (time.perf_counter() - begin)


def publication(engines: int, costs: Costs, assumptions: Assumptions) -> tuple[float, int]:
    """Return how long a publication takes, in seconds, and in how many rounds its pieces come to all nodes.

    A node that has a piece hands it on, so each round costs the pieces that a node fetches at a time; the rate is that of a
    node's line, which several share, or of the object store if that is less.
    """
    nodes = math.ceil(engines / assumptions.engines_a_node)
    rounds = math.ceil(math.log2(nodes + 1))
    rate = min(costs.store_bytes_s, assumptions.line_bytes_s / min(assumptions.senders, nodes))
    return assumptions.weights_bytes / rate + rounds * AT_ONCE * LARGEST_BYTES / rate + assumptions.swap_s, rounds


def simulate(engines: int, costs: Costs, assumptions: Assumptions) -> Scale:
    """Simulate a run whose learner would keep up with what the engines deliver if nothing else held them up."""
    # A training step of no length, with publications of none: what engines deliver alone, which grows with their number.
    alone = _rate(ALONE, _shape(ALONE, assumptions, step=1e-3, publish=1e-3, service=0.0), assumptions)[0]
    wanted = alone * engines / ALONE
    step = _groups(engines, assumptions) * assumptions.group_size / wanted
    publish, rounds = publication(engines, costs, assumptions)
    service = costs.buffer_journal_us / 1e6
    shape = _shape(engines, assumptions, step=_LEARNER_SHARE * step, publish=publish, service=service)
    rate, staleness = _rate(engines, shape, assumptions)
    ranks = max(1, engines // assumptions.engines_a_rank)
    payload = rate * costs.trajectory_bytes
    shares = {
        "the engines": rate / wanted,
        "the buffer's process, of which a run has one: longer episodes or larger groups a call help": wanted
        * costs.buffer_journal_us
        / 1e6,
        "publications, which take longer than a training step: more groups a step, or deltas": publish / step,
        "one node's line for payload: raise buffer.shards": wanted * costs.trajectory_bytes / assumptions.line_bytes_s,
        "the learner's intake: more data-parallel ranks": wanted * costs.intake_us / 1e6 / ranks,
    }
    return Scale(
        engines=engines,
        wanted_per_s=wanted,
        trajectories_per_s=rate,
        buffer_share=wanted * costs.buffer_us / 1e6,
        buffer_journal_share=wanted * costs.buffer_journal_us / 1e6,
        publish_s=publish,
        publish_share=publish / step,
        rounds=rounds,
        payload_mb_s=payload / 1e6,
        payload_share=wanted * costs.trajectory_bytes / assumptions.line_bytes_s,
        intake_share=wanted * costs.intake_us / 1e6 / ranks,
        staleness_mean=staleness,
        limit=max(shares, key=lambda name: shares[name]),
    )


def _groups(engines: int, assumptions: Assumptions) -> int:
    return max(1, round(engines * assumptions.slots / assumptions.in_flight / assumptions.group_size))


def _shape(engines: int, assumptions: Assumptions, *, step: float, publish: float, service: float) -> Shape:
    return Shape(
        engines=engines,
        slots=assumptions.slots,
        shortest=assumptions.shortest_s,
        longest=assumptions.longest_s,
        tail=assumptions.tail,
        tokens_per_second=assumptions.tokens / _mean_duration(assumptions),
        step=step,
        publish=publish,
        service=service,
    )


def _rate(engines: int, shape: Shape, assumptions: Assumptions) -> tuple[float, float]:
    """Simulate; return the trajectories that were trained a second, and the mean staleness of their tokens."""
    batch = BatchConfig(groups_per_step=_groups(engines, assumptions), group_size=assumptions.group_size)
    depth = math.ceil(assumptions.in_flight) + 2
    limits = BufferConfig(max_staleness=4 * depth, pipeline_depth=depth, capacity_mb=1_000_000_000)
    buffer = ReplayBuffer(batch, limits, simulated_tasks(100_000, seed=0), steps=10 * STEPS, seed=0)
    tally = StalenessTally()
    pool = Pool(buffer, shape, Varied(0.0), (tally,), batch=batch, steps=10 * STEPS)
    pool.run(step=WARM_UP)
    begin, rows = pool.now, tally.rows
    pool.run(step=STEPS)
    return (tally.rows - rows) / (pool.now - begin), tally.mean


def _mean_duration(assumptions: Assumptions) -> float:
    """The mean of a Pareto distribution that is cut off at the longest duration."""
    low, high, tail = assumptions.shortest_s, assumptions.longest_s, assumptions.tail
    cut_off = math.pow(low / high, tail)
    return tail * low / (tail - 1) * (1 - math.pow(low / high, tail - 1)) + high * cut_off


def view(result: ScaleResult) -> RenderableType:
    """The result as a table."""
    table = Table(title="What limits a run", title_justify="left", border_style="dim", box=box.ROUNDED)
    table.add_column("engines")
    for scale in result.scales:
        table.add_column(f"{scale.engines:,}", justify="right")
    rows: tuple[tuple[str, list[str]], ...] = (
        ("trajectories/s, engines alone", [f"{each.wanted_per_s:,.0f}" for each in result.scales]),
        ("trajectories/s, simulated", [f"{each.trajectories_per_s:,.0f}" for each in result.scales]),
        ("buffer's process busy", [f"{each.buffer_share:.1%}" for each in result.scales]),
        ("the same with a journal", [f"{each.buffer_journal_share:.1%}" for each in result.scales]),
        ("publication", [f"{each.publish_s:.1f} s" for each in result.scales]),
        ("... of a training step", [f"{each.publish_share:.0%}" for each in result.scales]),
        ("payload", [f"{each.payload_mb_s:,.1f} MB/s" for each in result.scales]),
        ("... of one node's line", [f"{each.payload_share:.1%}" for each in result.scales]),
        ("learner's ranks decoding", [f"{each.intake_share:.1%}" for each in result.scales]),
        ("mean staleness", [f"{each.staleness_mean:.2f}" for each in result.scales]),
        ("limit", [each.limit.partition(":")[0].partition(",")[0] for each in result.scales]),
    )
    for name, cells in rows:
        table.add_row(name, *cells)
    return table
