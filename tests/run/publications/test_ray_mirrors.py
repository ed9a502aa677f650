"""Weights through Ray's object store between three nodes, which are Ray nodes on this machine."""

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import ray
from ray._private.internal_api import get_memory_info_reply, get_state_from_address
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayError
from ray_actors import NodesHere, end_actor

from asyncrl.core.errors import ComponentFailed, DeadlineExceeded
from asyncrl.core.files.memory_files import memory_file_system
from asyncrl.core.files.memory_owners import remove_owner_file
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, WeightFile
from asyncrl.run.publications import ray_transport
from asyncrl.run.publications.mirror_actor import start_mirror
from asyncrl.run.publications.mirrored_transport import PiecesLost
from asyncrl.run.publications.ray_mirror import RayMirror
from asyncrl.run.publications.ray_pieces import LARGEST_BYTES, PieceFetch, StoreMemory, put_pieces
from asyncrl.run.publications.ray_transport import RayTransport
from asyncrl.run.publications.transport import read_stores
from asyncrl.weights.shm.memory_file import MemoryFull, mapped
from asyncrl.weights.shm.mirrored_files import MirroredFiles

STORE_BYTES = 80 << 20
SIZES = (LARGEST_BYTES + 17, 0, 1000)
"""Of the files of a publication."""
MINUTE = 60.0
RUN_ID = f"test-ray-mirrors-{os.getpid()}"
V1 = PolicyVersion(1)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[str]]:
    """Ids of three nodes; this process is on the first."""
    head = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = NodesHere(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    ray.init(address=cluster.address, log_to_driver=False)
    here = ray.get_runtime_context().get_node_id()
    yield [here, *(node["NodeID"] for node in ray.nodes() if node["NodeID"] != here)]
    ray.shutdown()
    cluster.shutdown()
    remove_owner_file(RUN_ID)


def left_behind() -> list[Path]:
    return [*memory_file_system().glob(f"asyncrl-{RUN_ID}-mirror-*")]


def _stored() -> int:
    """Bytes that all nodes have in their object stores, in memory or on their disks."""
    stats = get_memory_info_reply(get_state_from_address(ray.get_runtime_context().gcs_address)).store_stats
    return int(stats.object_store_bytes_used + stats.spilled_bytes_total - stats.restored_bytes_total)


async def _until_stored_at_most(size: int) -> None:
    """Wait until what was let go is removed."""
    async with asyncio.timeout(MINUTE):
        while _stored() > size:  # noqa: ASYNC110 - Ray tells nobody that it has removed an object
            await asyncio.sleep(0.1)


class Site:
    """The transport, and ranks that write on the first node.

    Attributes:
        mirrors: the actors that were made, by node, newest last.
    """

    def __init__(self, nodes: list[str], folder: Path) -> None:
        self.nodes, self._folder = nodes, folder
        self.mirrors: dict[str, list[ray.actor.ActorHandle]] = {node: [] for node in nodes}
        self.transport = RayTransport(self._make, folder, MINUTE, read_stores)

    def _make(self, node: str, log: Path) -> ray.actor.ActorHandle:
        self.mirrors[node].append(start_mirror(node, log, RUN_ID, None, RayMirror))
        return self.mirrors[node][-1]

    def write(self, version: int, sizes: tuple[int, ...] = SIZES) -> Publication:
        files = []
        for rank, size in enumerate(sizes):
            path = self._folder / f"rank{rank}-{version % 2}"
            path.write_bytes(random.Random(100 * version + rank).randbytes(size))
            files.append(WeightFile(str(path), self.nodes[0], size))
        return Publication(version=PolicyVersion(version), files=tuple(files), shards=(), fingerprints=(), fingerprint=0)

    async def check(self, publication: Publication, node: str) -> None:
        """Bring a publication to a node, and compare."""
        local = await self.transport.fetch_to_node(publication, node)
        for here, there in zip(local.files, publication.files, strict=True):
            assert here.node == node
            assert here.path != there.path
            assert bytes(mapped(here.path, here.size)) == bytes(mapped(there.path, there.size))


@pytest.fixture
async def site(nodes: list[str], tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(nodes, tmp_path)
    yield made
    await made.transport.close(MINUTE)
    for mirror in (each for of_node in made.mirrors.values() for each in of_node):
        ray.kill(mirror)
    MirroredFiles.remove_left_behind(RUN_ID)  # of the mirrors that a test has killed


async def test_what_arrives_is_what_was_written_and_after_fifty_versions_nothing_is_left_in_the_stores(site: Site) -> None:
    for version in range(1, 51):
        publication = site.write(version)
        await asyncio.gather(*(site.check(publication, node) for node in site.nodes[1:]))
        await _until_stored_at_most(2 * 3 * sum(SIZES))  # two versions on three nodes
    await _until_stored_at_most(0)
    await site.transport.leave(site.nodes[1])
    await site.check(publication, site.nodes[1])
    await site.transport.close(MINUTE)
    assert not left_behind()


async def test_a_mirror_that_is_killed_is_made_again_whichever_it_is(site: Site) -> None:
    learner, far, _ = site.nodes
    await site.check(site.write(1), far)
    end_actor(site.mirrors[learner][-1])
    await site.check(site.write(2), far)
    end_actor(site.mirrors[far][-1])
    await site.check(site.write(3), far)
    assert [len(site.mirrors[node]) for node in (learner, far)] == [2, 2]


async def test_a_mirror_that_is_frozen_is_killed_and_keeps_nothing_in_the_store(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = site.nodes[1]
    await site.check(site.write(1), far)
    frozen = site.mirrors[far][-1]
    os.kill(await frozen.__ray_call__.remote(lambda mirror: os.getpid()), signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(ray_transport, "ANSWER_S", 1.0 - MINUTE)
        with pytest.raises(DeadlineExceeded, match="the driver waited 1 s for the mirror of weights on node"):
            await site.transport.fetch_to_node(site.write(2), far)
    for version in range(3, 9):  # more than the store could hold
        await site.check(site.write(version), far)
    assert len(site.mirrors[far]) == 2


@pytest.mark.parametrize("full", [ObjectStoreFullError, OutOfDiskError])
def test_a_version_that_the_store_cannot_hold_is_an_error_with_a_remedy(
    nodes: list[str], full: type[RayError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(value: object) -> None:
        raise full

    (tmp_path / "rank0").write_bytes(bytes(100))
    monkeypatch.setattr(ray, "put", put)
    with pytest.raises(ComponentFailed, match=r"store on node .* has no room for 100 bytes of weights; start Ray there with"):
        put_pieces(str(tmp_path / "rank0"), 100)


@pytest.mark.parametrize(
    ("sizes", "free", "fits"),
    [
        ((60, 60, 60), (60, 60, 0), True),
        ((60, 60), (60, 59), False),
        ((60,), (59,), False),
        ((60, 80, 80), (60, 80, 10), True),
        ((60, 80, 80), (60, 80, 9), False),
        ((200, 200), (150, 0), True),
    ],
)
def test_memory_that_the_store_has_taken_need_not_be_free(
    sizes: tuple[int, ...], free: tuple[int, ...], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it Ray's processes would be ended by a signal."""
    memory = StoreMemory(150)
    for at, (size, left) in enumerate(zip(sizes, free, strict=True)):
        monkeypatch.setattr(os, "statvfs", lambda path, left=left: SimpleNamespace(f_bavail=left, f_frsize=1))
        with nullcontext() if fits or at < len(sizes) - 1 else pytest.raises(MemoryFull, match=f"has {left} bytes free, and Ray"):
            memory.take(size)


def fetch(pieces: "list[ray.ObjectRef[np.ndarray]]", seconds: float, stop: threading.Event, size: int = 1000) -> None:
    PieceFetch(V1, {0: pieces}, {0: memoryview(bytearray(size))}, "the mirror", seconds, stop).run()


@pytest.fixture
def never(nodes: list[str]) -> "ray.ObjectRef[np.ndarray]":
    """A piece that never comes."""

    @ray.remote(num_cpus=0, resources={"there is none": 1})
    def nothing() -> np.ndarray:
        return np.zeros(1, np.uint8)

    return nothing.remote()


def test_pieces_that_do_not_come_end_the_fetch_by_its_deadline(never: "ray.ObjectRef[np.ndarray]") -> None:
    with pytest.raises(DeadlineExceeded, match=r"the mirror waited 0.2 s for version 1 .* 1 pieces are missing; .*publish"):
        fetch([never], 0.2, threading.Event())


def test_a_fetch_that_is_stopped_ends_soon(never: "ray.ObjectRef[np.ndarray]") -> None:
    stop, began = threading.Event(), time.monotonic()
    threading.Timer(0.1, stop.set).start()
    fetch([never], MINUTE, stop)
    assert time.monotonic() - began < MINUTE / 2


def test_pieces_whose_owner_died_are_lost_at_once(nodes: list[str], tmp_path: Path) -> None:
    size = 1 << 20
    (tmp_path / "rank0").write_bytes(bytes(size))
    owner = start_mirror(nodes[1], tmp_path / "log", RUN_ID, None, RayMirror)
    files = [WeightFile(str(tmp_path / "rank0"), nodes[1], size)]
    (pieces,) = ray.get(owner.call.remote("put", V1, files), timeout=MINUTE).values()
    end_actor(owner)
    began = time.monotonic()
    with pytest.raises(PiecesLost, match="version 1 of the weights is gone where it was written"):
        fetch(pieces, MINUTE, threading.Event(), size)
    assert time.monotonic() - began < MINUTE / 2


def test_the_stores_of_all_nodes_are_known(nodes: list[str]) -> None:
    assert {node: store.size for node, store in read_stores().items()} == dict.fromkeys(nodes, STORE_BYTES)
