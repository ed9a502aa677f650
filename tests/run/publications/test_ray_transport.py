"""The driver's side of the mirrors: who puts and fetches what, what is in the store, and what happens when one dies."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from weakref import WeakKeyDictionary

import msgspec
import pytest

from asyncrl.core.errors import DeadlineExceeded, ProcessDied, WeightsOutOfReach
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import BroadcastAddress, Publication, WeightFile
from asyncrl.run.publications import ray_transport
from asyncrl.run.publications.mirrored_transport import PiecesLost
from asyncrl.run.publications.nccl_transport import NcclTransport
from asyncrl.run.publications.ray_transport import RayTransport
from asyncrl.run.publications.shm_transport import ShmTransport
from asyncrl.run.publications.transport import ObjectStore

LOGS = Path("logs")
SECONDS = 60.0
CLOSING_S = 1.0


def publication(version: int, *nodes: str) -> Publication:
    files = tuple(WeightFile(f"rank{rank}-{version % 2}", node, 10) for rank, node in enumerate(nodes or ("learner",)))
    return Publication(version=PolicyVersion(version), files=files, shards=(), fingerprints=(), fingerprint=version)


class Piece:
    """Stands for a reference to an object in the store, which has it as long as somebody has the reference."""


class FakeMirror:
    """Fetches once its gate opens; notes what it was asked for."""

    def __init__(self, node: str, cluster: "FakeCluster") -> None:
        self.node, self._cluster = node, cluster
        self.sources: list[str] = []
        self.put_versions: list[int] = []
        self.fetched: list[int] = []
        self.closed = False

    async def put(self, version: PolicyVersion, files: Sequence[WeightFile]) -> dict[int, list[Piece]]:
        self._cluster.live(self.node)
        self.put_versions.append(version)
        pieces = {number: [Piece()] for number, file in enumerate(files) if file.node == self.node}
        for (piece,) in pieces.values():
            self._cluster.store[piece] = (version, self.node)
        return pieces

    async def fetch_files(
        self, version: PolicyVersion, files: Sequence[WeightFile], pieces: dict[int, list[Piece]], seconds: float
    ) -> tuple[WeightFile, ...]:
        assert pieces.keys() >= {number for number, file in enumerate(files) if file.node != self.node}
        self.sources = sorted({self._cluster.store[piece][1] for (piece,) in pieces.values()})
        pieces = {}
        self.fetched.append(version)
        await self._cluster.gates.get(version, self._cluster.gate).wait()
        self._cluster.live(self.node)
        if self._cluster.lost.pop(version, False):
            raise PiecesLost(f"version {version} is gone")
        return tuple(
            file if file.node == self.node else WeightFile(f"mirror of {file.path}", self.node, file.size) for file in files
        )

    async def close(self) -> None:
        self.closed = True


class FakeActor:
    """Calls a mirror's methods as Ray would."""

    def __init__(self, mirror: FakeMirror) -> None:
        self.call = SimpleNamespace(remote=lambda method, *arguments: getattr(mirror, method)(*arguments))


class FakeCluster:
    """Mirrors, and what is in the object store.

    Attributes:
        gates: those of single versions; the others have ``gate``.
        dies: how many more times the mirror of a node dies when it is used.
        lost: versions whose pieces are gone when they are next fetched.
        store: the version and node of each piece that somebody has a reference to.
    """

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.made: list[FakeMirror] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.dies: Counter[str] = Counter()
        self.lost: dict[int, bool] = {}
        self.store = WeakKeyDictionary[Piece, tuple[int, str]]()

    @property
    def in_store(self) -> list[int]:
        return sorted({version for version, _ in self.store.values()})

    def make(self, node: str, log: Path) -> FakeActor:
        self.made.append(FakeMirror(node, self))
        return FakeActor(self.made[-1])

    def live(self, node: str) -> None:
        if self.dies[node] > 0:
            self.dies[node] -= 1
            raise ProcessDied(f"the mirror of {node} died")

    def newest(self, node: str) -> FakeMirror:
        return [mirror for mirror in self.made if mirror.node == node][-1]


def transport(cluster: FakeCluster, seconds: float = SECONDS) -> RayTransport:
    return RayTransport(cluster.make, LOGS, seconds, lambda: {"learner": ObjectStore("10.0.0.1", 100)})


async def passes() -> None:
    """Let everybody go on until they wait for the gate."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.fixture
async def cluster() -> FakeCluster:
    return FakeCluster()


async def test_engines_on_the_learners_node_read_what_was_written(cluster: FakeCluster) -> None:
    mirrors, written = transport(cluster), publication(1)
    assert await mirrors.fetch_to_node(written, "learner") is written
    assert not cluster.made


async def test_memory_alone_reaches_no_node_but_that_of_all_ranks() -> None:
    memory = ShmTransport()
    await memory.check_reach(publication(1, "a", "a"), "a")
    for node in ("a", "b", "c"):
        with pytest.raises(WeightsOutOfReach, match=rf"weights\.kind=shm does not reach node {node}.*set it to auto"):
            await memory.check_reach(publication(1, "a", "b"), node)


async def test_engines_of_one_node_share_a_transfer(cluster: FakeCluster) -> None:
    mirrors, written = transport(cluster), publication(1, "a", "b")
    cluster.gate.clear()
    first, second = (asyncio.create_task(mirrors.fetch_to_node(written, "b")) for _ in range(2))
    await passes()
    first.cancel()
    cluster.gate.set()
    local = await second
    assert local.files == (WeightFile("mirror of rank0-1", "b", 10), written.files[1])
    assert (local.version, local.fingerprint) == (1, 1)
    assert cluster.newest("b").fetched == [1], "one transfer, and it went on although who asked first was cancelled"
    assert cluster.newest("b").sources == ["a"]
    assert await mirrors.fetch_to_node(written, "b") == local
    assert cluster.newest("a").put_versions == [1]


async def test_many_nodes_share_what_was_put_once_and_nothing_stays_in_the_store(cluster: FakeCluster) -> None:
    mirrors, written = transport(cluster), publication(1, "a", "b")
    cluster.gate.clear()
    fetching = [asyncio.create_task(mirrors.fetch_to_node(written, f"n{number}")) for number in range(14)]
    await passes()
    assert cluster.in_store == [1]
    cluster.gate.set()
    await asyncio.gather(*fetching)
    assert cluster.in_store == []
    assert cluster.newest("a").put_versions == cluster.newest("b").put_versions == [1]
    assert (await mirrors.fetch_to_node(written, "late")).files[0].node == "late"
    assert cluster.newest("a").put_versions == [1, 1], "who joins late has it put again"
    assert cluster.in_store == []


async def test_what_was_given_up_does_not_stay_in_the_store(cluster: FakeCluster) -> None:
    mirrors, written = transport(cluster), publication(1)
    cluster.dies["n"] = 2
    with pytest.raises(ProcessDied) as raised:
        await mirrors.fetch_to_node(written, "n")
    assert cluster.in_store == [], f"although the error is known: {raised.value}"


async def test_a_third_version_waits_until_one_of_two_has_left_the_store(cluster: FakeCluster) -> None:
    mirrors = transport(cluster)
    cluster.gates = {version: asyncio.Event() for version in (1, 2, 3)}
    fetching = [asyncio.create_task(mirrors.fetch_to_node(publication(version), f"n{version}")) for version in (1, 2, 3)]
    await passes()
    also = asyncio.create_task(mirrors.fetch_to_node(publication(2), "m"))
    await passes()
    assert cluster.in_store == [1, 2]
    assert cluster.newest("m").fetched == [2], "it is in the store already"
    cluster.gates[1].set()
    await passes()
    assert cluster.in_store == [2, 3]
    for gate in cluster.gates.values():
        gate.set()
    await asyncio.gather(*fetching, also)
    assert cluster.in_store == []


async def test_a_version_that_never_finds_room_says_for_whom_it_waited(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_transport, "ANSWER_S", 0.0)
    mirrors = transport(cluster, 0.1)
    mirrors._under_way.update(map(PolicyVersion, (1, 2)))
    with pytest.raises(DeadlineExceeded, match=r"version 3 .* waited 0.1 s for nodes that still fetch versions 1, 2; see their"):
        await mirrors.fetch_to_node(publication(3), "n")


async def test_pieces_that_are_lost_are_put_again(cluster: FakeCluster) -> None:
    cluster.lost = {1: True}
    assert (await transport(cluster).fetch_to_node(publication(1), "n")).files[0].node == "n"
    assert cluster.newest("learner").put_versions == [1, 1]


async def test_a_store_that_is_too_small_for_two_versions_is_told_before_an_engine_starts(cluster: FakeCluster) -> None:
    mirrors = transport(cluster)
    fits, too_large = publication(1, *["learner"] * 4), publication(1, *["learner"] * 5)
    await mirrors.check_reach(fits, "n")
    await mirrors.check_reach(too_large, "learner")
    said = r"do not come to node n: Ray's object store on 10.0.0.1 has 0 MiB, and 2 versions.* --object-store-memory=125,"
    with pytest.raises(WeightsOutOfReach, match=said):
        await mirrors.check_reach(too_large, "n")


async def test_a_mirror_that_died_is_made_again(cluster: FakeCluster) -> None:
    mirrors = transport(cluster)
    cluster.dies["n"] = 1
    assert (await mirrors.fetch_to_node(publication(1), "n")).files[0].node == "n"
    cluster.dies["learner"] = 1
    assert (await mirrors.fetch_to_node(publication(2), "n")).files[0].node == "n"
    assert Counter(mirror.node for mirror in cluster.made) == {"n": 2, "learner": 2}


async def test_transfers_whose_mirror_died_share_one_successor(cluster: FakeCluster) -> None:
    mirrors = transport(cluster)
    cluster.gate.clear()
    fetching = [asyncio.create_task(mirrors.fetch_to_node(publication(version), "n")) for version in (1, 2)]
    await passes()
    cluster.dies["n"] = 2  # once for each transfer
    cluster.gate.set()
    cluster.gate.clear()  # both go on, and the successor's transfers wait
    await passes()
    cluster.gate.set()
    await asyncio.gather(*fetching)
    assert [mirror.fetched for mirror in cluster.made if mirror.node == "n"] == [[1, 2], [1, 2]]


async def test_a_node_that_is_gone_fails_alone_and_may_be_asked_again(cluster: FakeCluster) -> None:
    mirrors, written = transport(cluster), publication(1)
    cluster.dies["n"] = 2
    with pytest.raises(ProcessDied, match="the mirror of n died"):
        await mirrors.fetch_to_node(written, "n")
    assert (await mirrors.fetch_to_node(written, "other")).files[0].node == "other"
    assert (await mirrors.fetch_to_node(written, "n")).files[0].node == "n"


async def test_closing_ends_transfers_and_closes_all_mirrors(cluster: FakeCluster) -> None:
    mirrors = transport(cluster)
    cluster.gate.clear()
    fetching = asyncio.create_task(mirrors.fetch_to_node(publication(1), "n"))
    await passes()
    await mirrors.close(CLOSING_S)
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert all(mirror.closed for mirror in cluster.made)


async def test_engines_that_take_broadcasts_need_no_copy_and_those_beside_all_ranks_no_broadcast() -> None:
    address = BroadcastAddress("10.0.0.1", 1, bytes(32), SECONDS)
    far = msgspec.structs.replace(publication(1, "a", "b"), senders=(address, address))
    near = msgspec.structs.replace(publication(1, "a"), senders=(address,))
    assert await NcclTransport(everywhere=False).fetch_to_node(far, "b") is far, "the ranks' own files, which therefore stay"
    assert await NcclTransport(everywhere=False).fetch_to_node(near, "a") == publication(1, "a")
    assert await NcclTransport(everywhere=True).fetch_to_node(near, "a") is near
