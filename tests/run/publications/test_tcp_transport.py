"""The driver's side of the mirrors: who fetches from whom, and what happens when one dies."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from asyncrl.core.errors import ProcessDied, WeightsOutOfReach
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import BroadcastAddress, Publication, WeightFile
from asyncrl.run.publications.nccl_transport import NcclTransport
from asyncrl.run.publications.shm_transport import ShmTransport
from asyncrl.run.publications.tcp_transport import FAN_OUT, TcpTransport
from asyncrl.weights.tcp.chunk_wire import Address

LOGS = Path("logs")
SECONDS = 60.0
CLOSING_S = 1.0


def publication(version: int, *nodes: str) -> Publication:
    files = tuple(WeightFile(f"rank{rank}-{version % 2}", node, 10) for rank, node in enumerate(nodes or ("learner",)))
    return Publication(version=PolicyVersion(version), files=files, shards=(), fingerprints=(), fingerprint=version)


class FakeMirror:
    """Fetches once its gate opens; notes what it was asked for."""

    def __init__(self, node: str, cluster: "FakeCluster") -> None:
        self.node, self._cluster = node, cluster
        self.sources: dict[str, list[Address]] = {}
        self.served: list[int] = []
        self.fetched: list[int] = []
        self.closed = False

    async def where(self) -> Address:
        return Address(self.node, 1)

    async def serve(self, version: PolicyVersion, files: Sequence[WeightFile]) -> None:
        self._cluster.live(self.node)
        self.served.append(version)

    async def fetch_files(
        self, version: PolicyVersion, files: Sequence[WeightFile], sources: dict[str, list[Address]], seconds: float
    ) -> tuple[WeightFile, ...]:
        self.sources = sources
        self.fetched.append(version)
        await self._cluster.gate.wait()
        self._cluster.live(self.node)
        return tuple(
            file if file.node == self.node else WeightFile(f"mirror of {file.path}", self.node, file.size) for file in files
        )

    async def close(self) -> None:
        self.closed = True


class FakeActor:
    """Calls a mirror's methods as Ray would."""

    def __init__(self, mirror: FakeMirror) -> None:
        self._mirror = mirror

    def __getattr__(self, method: str) -> SimpleNamespace:
        return SimpleNamespace(remote=getattr(self._mirror, method))


class FakeCluster:
    """``dies`` says how many more times the mirror of a node dies when it is used."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.made: list[FakeMirror] = []
        self.dies: Counter[str] = Counter()

    def make(self, node: str, log: Path) -> FakeActor:
        self.made.append(FakeMirror(node, self))
        return FakeActor(self.made[-1])

    def live(self, node: str) -> None:
        if self.dies[node] > 0:
            self.dies[node] -= 1
            raise ProcessDied(f"the mirror of {node} died")

    def newest(self, node: str) -> FakeMirror:
        return [mirror for mirror in self.made if mirror.node == node][-1]


async def passes() -> None:
    """Let everybody go on until they wait for the gate."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.fixture
async def cluster() -> FakeCluster:
    return FakeCluster()


async def test_engines_on_the_learners_node_read_what_was_written(cluster: FakeCluster) -> None:
    mirrors, written = TcpTransport(cluster.make, LOGS, SECONDS), publication(1)
    assert await mirrors.fetch_to_node(written, "learner") is written
    assert not cluster.made


async def test_memory_alone_reaches_no_node_but_that_of_all_ranks() -> None:
    memory = ShmTransport()
    await memory.check_reach(publication(1, "a", "a"), "a")
    for node in ("a", "b", "c"):
        with pytest.raises(WeightsOutOfReach, match=rf"weights\.kind=shm does not reach node {node}.*set it to auto"):
            await memory.check_reach(publication(1, "a", "b"), node)


async def test_engines_of_one_node_share_a_transfer(cluster: FakeCluster) -> None:
    mirrors, written = TcpTransport(cluster.make, LOGS, SECONDS), publication(1, "a", "b")
    cluster.gate.clear()
    first, second = (asyncio.create_task(mirrors.fetch_to_node(written, "b")) for _ in range(2))
    await passes()
    first.cancel()
    cluster.gate.set()
    local = await second
    assert local.files == (WeightFile("mirror of rank0-1", "b", 10), written.files[1])
    assert (local.version, local.fingerprint) == (1, 1)
    assert cluster.newest("b").fetched == [1], "one transfer, and it went on although who asked first was cancelled"
    assert cluster.newest("b").sources == {"a": [Address("a", 1)]}
    assert await mirrors.fetch_to_node(written, "b") == local
    assert cluster.newest("a").served == [1]


async def test_nodes_make_a_tree_in_the_order_in_which_they_begin(cluster: FakeCluster) -> None:
    mirrors, written = TcpTransport(cluster.make, LOGS, SECONDS), publication(1)
    cluster.gate.clear()
    nodes = [f"n{number}" for number in range(14)]
    fetching = [asyncio.create_task(mirrors.fetch_to_node(written, node)) for node in nodes]
    await passes()
    cluster.gate.set()
    await asyncio.gather(*fetching)
    parents = [cluster.newest(node).sources["learner"] for node in nodes]
    assert all(sources[-1] == Address("learner", 1) for sources in parents), "the learner's node is the last resort"
    children = Counter(sources[0].host for sources in parents)
    assert max(children.values()) == FAN_OUT
    for number, sources in enumerate(parents):
        assert sources[0].host in ["learner", *nodes[:number]], "the parent had begun before"
    assert children["learner"] == FAN_OUT


async def test_a_mirror_that_died_is_made_again(cluster: FakeCluster) -> None:
    mirrors = TcpTransport(cluster.make, LOGS, SECONDS)
    cluster.dies["n"] = 1
    assert (await mirrors.fetch_to_node(publication(1), "n")).files[0].node == "n"
    cluster.dies["learner"] = 1
    assert (await mirrors.fetch_to_node(publication(2), "n")).files[0].node == "n"
    assert Counter(mirror.node for mirror in cluster.made) == {"n": 2, "learner": 2}


async def test_transfers_whose_mirror_died_share_one_successor(cluster: FakeCluster) -> None:
    mirrors = TcpTransport(cluster.make, LOGS, SECONDS)
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
    mirrors, written = TcpTransport(cluster.make, LOGS, SECONDS), publication(1)
    cluster.dies["n"] = 2
    with pytest.raises(ProcessDied, match="the mirror of n died"):
        await mirrors.fetch_to_node(written, "n")
    assert (await mirrors.fetch_to_node(written, "other")).files[0].node == "other"
    assert (await mirrors.fetch_to_node(written, "n")).files[0].node == "n"


async def test_closing_ends_transfers_and_closes_all_mirrors(cluster: FakeCluster) -> None:
    mirrors = TcpTransport(cluster.make, LOGS, SECONDS)
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
