"""Publications from a tensor-parallel learner to an engine's reader, beside memcpy and gloo's flat broadcast, all in one run.

*Loaded* means that the reader has done what an engine's worker does until its layers are packed: it has mapped every file,
computed the fingerprint of every shard, filled parameters as vLLM merges them (queries, keys and values in one) beside those in
use, and swapped the two. Packing them for vLLM's CPU kernels is not in it.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from asyncrl.bench.weights.weights_parties import (
    Broadcaster,
    Folder,
    Loaded,
    Party,
    Rank,
    Reader,
    StoredTimes,
    started,
)
from asyncrl.core.architectures.architecture import Architecture
from asyncrl.core.errors import WeightMismatch
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.weights.publication_merge import merge

CHANGED = 0.01
"""The share of blocks that change between two versions through a folder."""
WARM_UP = 2
"""Publications before the measured ones, until both sides of every file have their memory."""
TARGETS = {"shm_gb_per_s": 3.0, "shm_over_gloo": 1.3}
"""The least that each figure should be."""
LIMITS = {"pause_share": 0.2, "blocked_over_memcpy": 1.0, "blocked_over_memcpy_in_turn": 1.0}
"""The most that each figure should be."""


class ModelSettings(msgspec.Struct, frozen=True):
    """A model of Qwen3's architecture with tied embeddings, in bfloat16."""

    layers: int
    vocabulary: int
    hidden: int = 1024
    heads: int = 16
    key_value_heads: int = 8
    head_size: int = 128
    intermediate: int = 3072

    @property
    def architecture(self) -> Architecture:
        """The tensors of the model."""
        return Architecture(
            hidden_size=self.hidden,
            heads=self.heads,
            key_value_heads=self.key_value_heads,
            head_size=self.head_size,
            intermediate_size=self.intermediate,
            vocabulary=self.vocabulary,
            tied=True,
            biases=False,
            head_norms=True,
            with_experts=(False,) * self.layers,
        )


class WeightsBenchSettings(msgspec.Struct, frozen=True):
    """What is measured.

    Attributes:
        models: by default of 200 MB and of 1 GB.
        tensor_parallel: learner ranks, each a process.
        repetitions: measurements of each figure; those of publications, and of copies beside them, alternate. The median
            counts.
    """

    models: tuple[ModelSettings, ...] = (ModelSettings(4, 36_864), ModelSettings(28, 60_416))
    tensor_parallel: int = 2
    repetitions: int = 7


class TransportTimes(msgspec.Struct, frozen=True):
    """Median seconds of a publication.

    Attributes:
        whole: from the call of the ranks until the reader has loaded.
        write: until all ranks had written, fingerprint included.
        load: what the reader needed.
        pause: the swap, at the end of ``load``.
    """

    whole: float
    write: float
    load: float
    pause: float


class DiskTimes(msgspec.Struct, frozen=True):
    """Versions through a folder on this machine's disk, in bytes there and median seconds.

    Attributes:
        whole_bytes, whole_store, whole_fetch: the first version, which is stored whole.
        delta_bytes, delta_store, delta_fetch: a version in which 1 % of the blocks of 4 KiB have changed.
    """

    whole_bytes: int
    whole_store: float
    whole_fetch: float
    delta_bytes: float
    delta_store: float
    delta_fetch: float


class ModelResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one model; a GB is 10**9 bytes.

    Attributes:
        bytes: the size of one publication.
        memcpy_gb_per_s: the rate of one thread; ranks copy their shards at the same time, and this is the slowest rank's. Each
            rank makes its copies one after the other, before there are publications.
        memcpy_in_turn_gb_per_s: the same for copies that all ranks begin together, each just before a publication by ``shm``.
        fingerprint_gb_per_s: the same as ``memcpy_gb_per_s`` for computing fingerprints.
        gloo_gb_per_s: the rate of broadcasting one flat tensor of the model's size from one process to another.
        shm: the seconds of publications to a reader on the same node.
        shm_gb_per_s: bytes over seconds from publishing to loaded.
        shm_over_gloo: the same over gloo's rate, which proves and loads nothing.
        pause_share: the pause over the whole publication by ``shm``.
        disk: publications through a folder.
        blocked_over_memcpy: seconds for which a rank cannot train, over those of one memcpy of its shards; the slowest rank of
            each publication counts.
        blocked_over_memcpy_in_turn: the same over the copies that were made in turn with publications.
        met: which targets were met.
    """

    bytes: int
    memcpy_gb_per_s: float
    memcpy_in_turn_gb_per_s: float
    fingerprint_gb_per_s: float
    gloo_gb_per_s: float
    shm: TransportTimes
    shm_gb_per_s: float
    shm_over_gloo: float
    pause_share: float
    blocked_over_memcpy: float
    blocked_over_memcpy_in_turn: float
    disk: DiskTimes
    met: dict[str, bool]


class WeightsBenchResult(msgspec.Struct, frozen=True):
    """What ``asyncrl bench weights`` writes: the results by model, and on how many cores."""

    cores: int
    models: tuple[ModelResult, ...]
    settings: WeightsBenchSettings


def run(json_file: Path, console: Console, settings: WeightsBenchSettings | None = None) -> WeightsBenchResult:
    """Measure everything, report progress on ``console``, and write ``json_file``.

    Raises:
        WeightMismatch: what was loaded is not what was published.
        ProcessDied: a process ended too early.
    """
    settings = settings or WeightsBenchSettings()
    os.environ |= {"OMP_WAIT_POLICY": "passive", "CUDA_VISIBLE_DEVICES": ""}  # inherited by the processes below
    results = []
    for model in settings.models:
        console.print(f"Measuring publications of {model.layers} layers")
        results.append(_measure(model, settings))
    result = WeightsBenchResult(os.cpu_count() or 1, tuple(results), settings)
    json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    return result


def _measure(model: ModelSettings, settings: WeightsBenchSettings) -> ModelResult:
    run_id, layout = f"bench-{os.getpid()}", ParallelLayout(tensor=settings.tensor_parallel)
    with ExitStack() as stack:
        ranks = [stack.enter_context(started(Rank, run_id, rank, model.architecture, layout)) for rank in range(layout.ranks)]
        sizes = [rank.call("size") for rank in ranks]
        copies = _all(ranks, "memcpy", settings.repetitions)
        proofs = _all(ranks, "fingerprint", settings.repetitions)
        publishing = _Publishing(ranks, stack.enter_context(started(Reader, model.architecture)))
        for _ in range(WARM_UP):
            publishing.publish()
        shm, beside = [], []
        publishing.blocked.clear()
        for _ in range(settings.repetitions):
            beside.append(max(_all(ranks, "copy")))
            shm.append(publishing.publish())
        blocked = statistics.median(publishing.blocked)
        in_turn = statistics.median(beside)
    gloo, disk = _gloo(sum(sizes), settings.repetitions), _disk(model, settings, run_id)
    figures = _figures(sum(sizes), gloo, _median(shm))
    figures |= {"blocked_over_memcpy": blocked / max(copies), "blocked_over_memcpy_in_turn": blocked / in_turn}
    met = {name: figures[name] >= least for name, least in TARGETS.items()}
    met |= {name: figures[name] <= most for name, most in LIMITS.items()}
    return ModelResult(
        bytes=sum(sizes),
        memcpy_gb_per_s=max(sizes) / max(copies) / 1e9,
        memcpy_in_turn_gb_per_s=max(sizes) / in_turn / 1e9,
        fingerprint_gb_per_s=max(sizes) / max(proofs) / 1e9,
        gloo_gb_per_s=sum(sizes) / gloo / 1e9,
        shm=_median(shm),
        disk=disk,
        met=met,
        **figures,
    )


def _disk(model: ModelSettings, settings: WeightsBenchSettings, run_id: str) -> DiskTimes:
    """Publish through a folder: one whole version, fetched to both sides, then versions with few changed blocks."""
    layout = ParallelLayout(tensor=settings.tensor_parallel)
    with (
        tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as folder,
        started(Folder, run_id, model.architecture, layout, Path(folder)) as node,
    ):
        whole: StoredTimes = node.call("publish", 0.0)
        node.call("publish", CHANGED)  # the second side begins with the whole version
        changed: list[StoredTimes] = [node.call("publish", CHANGED) for _ in range(settings.repetitions)]
    median = [statistics.median(values) for values in zip(*changed, strict=True)]
    return DiskTimes(*whole, *median)


def _figures(size: int, gloo: float, shm: TransportTimes) -> dict[str, float]:
    """Return the figures of publications that have targets, and one more."""
    return {
        "shm_gb_per_s": size / shm.whole / 1e9,
        "shm_over_gloo": gloo / shm.whole,
        "pause_share": shm.pause / shm.whole,
    }


class _Publishing:
    """Ranks and a reader that pass on one version after the other."""

    def __init__(self, ranks: list[Party], reader: Party) -> None:
        self._ranks, self._reader, self._version = ranks, reader, 0
        self.blocked: list[float] = []

    def publish(self) -> TransportTimes:
        self._version += 1
        version, began = PolicyVersion(self._version), time.perf_counter()
        parts, seconds = zip(*_all(self._ranks, "write", version), strict=True)
        publication = merge(parts)
        written = time.perf_counter()
        loaded: Loaded = self._reader.call("load", publication)
        ended = time.perf_counter()
        if loaded.fingerprint != publication.fingerprint:
            raise WeightMismatch(f"version {version}: {loaded.fingerprint:#x} was loaded, {publication.fingerprint:#x} published")
        self.blocked.append(max(seconds))
        return TransportTimes(ended - began, written - began, ended - written, loaded.pause)


def _all(parties: list[Party], method: str, *arguments: object) -> list[Any]:
    """Call a method of all at the same time."""
    for party in parties:
        party.begin(method, *arguments)
    return [party.end() for party in parties]


def _gloo(size: int, repetitions: int) -> float:
    """Return the median seconds of one broadcast between two processes, but for the first."""
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as folder, ExitStack() as stack:
        meeting = Path(folder) / "meeting"
        pair = [stack.enter_context(started(Broadcaster, meeting, rank, size)) for rank in range(2)]
        times: list[float] = [max(_all(pair, "broadcast")) for _ in range(repetitions + 1)]
    return statistics.median(times[1:])


def _median(times: list[TransportTimes]) -> TransportTimes:
    return TransportTimes(
        **{name: statistics.median(getattr(each, name) for each in times) for name in TransportTimes.__struct_fields__}
    )


def view(result: WeightsBenchResult) -> RenderableType:
    """Return the result as a table."""
    table = Table(title=f"Weights, on {result.cores} cores", title_justify="left", border_style="dim", box=box.ROUNDED)
    table.add_column("", style="dim")
    for model in result.models:
        table.add_column(f"{model.bytes / 1e6:,.0f} MB", justify="right")
    rows: dict[str, Callable[[ModelResult], str]] = {
        "memcpy of the shards, one thread each": lambda r: f"{r.memcpy_gb_per_s:.2f} GB/s",
        "memcpy in turn with publications": lambda r: f"{r.memcpy_in_turn_gb_per_s:.2f} GB/s",
        "fingerprint of the shards, one thread each": lambda r: f"{r.fingerprint_gb_per_s:.2f} GB/s",
        "gloo, flat broadcast": lambda r: f"{r.gloo_gb_per_s:.2f} GB/s",
        "shm, published to loaded": lambda r: f"{r.shm_gb_per_s:.2f} GB/s",
        "shm over gloo": lambda r: f"{r.shm_over_gloo:.2f} x",
        "pause over the publication": lambda r: f"{r.pause_share:.4f}",
        "learner blocked": lambda r: f"{r.blocked_over_memcpy:.2f} memcpys, {r.blocked_over_memcpy_in_turn:.2f} of those in turn",
        "disk, stored whole and fetched": lambda r: f"{r.disk.whole_store:.2f} s, {r.disk.whole_fetch:.2f} s",
        "disk, 1 % changed: bytes": lambda r: f"{r.disk.delta_bytes / 1e6:,.2f} MB",
        "disk, 1 % changed: stored and fetched": lambda r: f"{r.disk.delta_store:.2f} s, {r.disk.delta_fetch:.2f} s",
        "targets missed": lambda r: ", ".join(name for name, met in r.met.items() if not met) or "none",
    }
    for name, figure in rows.items():
        table.add_row(name, *(figure(model) for model in result.models))
    return table
