"""Publications that travel to other nodes, over real sockets and through real files; each mirror stands for a node."""

import errno
import os
import random
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_client import is_turned_away_while_it_sends

from asyncrl.core.errors import ComponentFailed, DeadlineExceeded
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.network.tls import TlsKeys
from asyncrl.core.publication import Shard, WeightFile
from asyncrl.run.nodes.certificates import make_keys
from asyncrl.weights.merge import merge
from asyncrl.weights.shm.memory_file import MemoryFull
from asyncrl.weights.shm.shared_memory import SharedMemory
from asyncrl.weights.tcp import accepting_socket, chunk_fetch, chunk_server
from asyncrl.weights.tcp.chunk_server import ChunkServer
from asyncrl.weights.tcp.chunk_wire import ANSWER, CHUNK_BYTES, REQUEST, WELCOME, Address, Answer, introduction, receive
from asyncrl.weights.tcp.held_files import HeldFile, HeldFiles
from asyncrl.weights.tcp.mirror import Mirror
from asyncrl.weights.tcp.unknown_clients import MOST_UNKNOWN

SECRET = bytes(range(32))
HOST = "127.0.0.1"
V1, V2, V3 = PolicyVersion(1), PolicyVersion(2), PolicyVersion(3)
MINUTE = 60.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator["Nodes"]:
    with ExitStack() as stack:
        yield Nodes(tmp_path, stack)


class Nodes:
    """Mirrors in folders of their own, made when they are first asked for."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._mirrors: dict[str, Mirror] = {}

    def __getitem__(self, node: str) -> Mirror:
        if node not in self._mirrors:
            self._mirrors[node] = self.make(node)
        return self._mirrors[node]

    def __setitem__(self, node: str, mirror: Mirror) -> None:
        self._mirrors[node] = mirror

    def make(self, node: str, secret: bytes = SECRET, tls: TlsKeys | None = None) -> Mirror:
        (self._folder / node).mkdir(exist_ok=True)
        return self._stack.enter_context(closing(Mirror("run", node, secret, HOST, str(self._folder / node), tls)))

    def written(self, version: PolicyVersion, contents: Sequence[bytes], node: str = "learner") -> tuple[WeightFile, ...]:
        """Files that ranks on ``node`` wrote, already served by its mirror."""
        folder = self._folder / node
        folder.mkdir(exist_ok=True)
        files = []
        for rank, content in enumerate(contents):
            path = folder / f"rank{rank}-{version % 2}"
            path.write_bytes(content)
            files.append(WeightFile(str(path), node, len(content)))
        self[node].serve(version, files)
        return tuple(files)

    def fetch_files(
        self, node: str, version: PolicyVersion, files: Sequence[WeightFile], *through: str, seconds: float = MINUTE
    ) -> tuple[WeightFile, ...]:
        """Fetch through mirrors ``through``, and in the end from those of the files' nodes."""
        sources = {file.node: [*(self[each].address for each in through), self[file.node].address] for file in files}
        return self[node].fetch_files(version, files, sources, seconds)


def patient(monkeypatch: pytest.MonkeyPatch, *silent: Address) -> None:
    """Have fetches wait for sources as long as these take, but for the ``silent`` ones, which are given up soon."""
    connect = chunk_fetch._Connections.to

    def to(connections: chunk_fetch._Connections, source: Address, patience: float) -> socket.socket:
        return connect(connections, source, 0.2 if source in silent else MINUTE)

    monkeypatch.setattr(chunk_fetch._Connections, "to", to)


def contents_of(files: Sequence[WeightFile]) -> list[bytes]:
    return [Path(file.path).read_bytes()[: file.size] for file in files]


def random_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 70), st.sampled_from([63, 64, 65, 128, 640])), min_size=1, max_size=4), st.integers(0, 99)
)
def test_what_arrives_is_what_was_written(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int) -> None:
    """For any number of files of any size; chunks are of 64 bytes here."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for module in ("chunk_fetch", "held_files"):
            patch.setattr(f"asyncrl.weights.tcp.{module}.CHUNK_BYTES", 64)
        nodes = Nodes(tmp_path_factory.mktemp("nodes"), stack)
        for version in (V1, V2, V3):
            contents = [random_bytes(size, seed + version) for size in sizes]
            files = nodes.written(version, contents)
            local = nodes.fetch_files("other", version, files)
            assert contents_of(local) == contents
            assert [(file.node, file.size) for file in local] == [("other", size) for size in sizes]


def test_a_mirrored_publication_is_read_like_the_one_that_was_written(nodes, tmp_path: Path) -> None:
    weights = torch.randn(600, 1024)
    with (
        closing(SharedMemory("run", 0, str(tmp_path), node="a")) as first,
        closing(SharedMemory("run", 1, str(tmp_path), node="b")) as second,
    ):
        parts = [
            first.write(V1, [Shard("w", (600, 1024), (0, 0), weights[:300])]),
            second.write(V1, [Shard("w", (600, 1024), (300, 0), weights[300:]), Shard("norm", (3,), (0,), torch.ones(3).half())]),
        ]
        publication = merge(parts)
        for node in ("a", "b"):
            nodes[node].serve(V1, publication.files)
        there = msgspec.structs.replace(publication, files=nodes.fetch_files("engines", V1, publication.files))
        partly = msgspec.structs.replace(publication, files=nodes.fetch_files("b", V1, publication.files))
    assert there.fingerprint == publication.fingerprint
    assert torch.equal(dict(SharedMemory.read(there))["w"], weights)
    assert partly.files[1] == publication.files[1], "what lies on the node already is not copied"


def test_a_publication_stays_while_the_next_one_arrives(nodes) -> None:
    first, second, third = ([random_bytes(3 * CHUNK_BYTES // 2, seed)] for seed in (1, 2, 3))
    earlier = nodes.fetch_files("other", V1, nodes.written(V1, first))
    later = nodes.fetch_files("other", V2, nodes.written(V2, second))
    assert (contents_of(earlier), contents_of(later)) == (first, second)
    assert nodes.fetch_files("other", V3, nodes.written(V3, third)) == earlier, "the files are used again"
    assert (contents_of(earlier), contents_of(later)) == (third, second)


def test_what_did_not_arrive_is_overwritten_first_when_it_is_fetched_again(nodes, monkeypatch) -> None:
    first, second = ([random_bytes(100, seed)] for seed in (1, 2))
    earlier, files = nodes.fetch_files("other", V1, nodes.written(V1, first)), nodes.written(V2, second)
    with monkeypatch.context() as patch:
        patch.setattr(HeldFile, "checksum", lambda self, chunk: 12345)
        with pytest.raises(ComponentFailed, match="wrong checksum"):
            nodes.fetch_files("other", V2, files)
    later = nodes.fetch_files("other", V2, files)
    assert (contents_of(earlier), contents_of(later)) == (first, second), "an engine may still read the version before"


def test_what_a_dead_mirror_left_can_be_read_while_its_successor_fetches(nodes) -> None:
    first, second = ([random_bytes(100, seed)] for seed in (1, 2))
    (earlier,) = nodes.fetch_files("other", V1, nodes.written(V1, first))
    mapped = torch.from_file(earlier.path, shared=False, size=earlier.size, dtype=torch.uint8)
    nodes["other"] = nodes.make("other")  # the first one is still there, and removes nothing
    later = nodes.fetch_files("other", V2, nodes.written(V2, second))
    assert (later[0].path, contents_of(later)) == (earlier.path, second)
    assert mapped.numpy().tobytes() == first[0]


def test_an_older_version_is_not_mixed_with_the_newer_one_in_its_files(nodes) -> None:
    files = {version: nodes.written(version, [random_bytes(100, version)]) for version in (V1, V2, V3)}
    with pytest.raises(ComponentFailed, match="version 1 of the weights is gone"):
        nodes.fetch_files("other", V1, files[V1])


def test_a_tree_of_seven_nodes_passes_chunks_on_while_they_arrive(nodes, monkeypatch) -> None:
    """The learner's node sends each chunk as often as it has children, and a mirror hands on before it has everything."""
    contents = [random_bytes(5 * CHUNK_BYTES + 17)]
    files = nodes.written(V1, contents)
    sent: dict[int, int] = {}
    find = HeldFiles.find
    patient(monkeypatch)  # a chunk that is fetched again would be counted twice

    def counted(held: HeldFiles, *what: object) -> object:
        found = find(held, *what)
        if held is nodes["learner"]._held and found[0] is Answer.CHUNK:
            sent[what[2]] = sent.get(what[2], 0) + 1
        return found

    monkeypatch.setattr(HeldFiles, "find", counted)
    # The children begin first: they can only end because their parents pass on what arrives.
    parents = {1: "learner", 2: "learner", 3: "n1", 4: "n1", 5: "n2", 6: "n2"}
    results: dict[int, tuple[WeightFile, ...]] = {}
    names = ["learner", *(f"n{number}" for number in parents)]
    for name in names:
        nodes[name]
    threads = []
    for number in reversed(parents):
        through = () if parents[number] == "learner" else (parents[number],)

        def work(number: int = number, through: tuple[str, ...] = through) -> None:
            results[number] = nodes.fetch_files(f"n{number}", V1, files, *through)

        threads.append(threading.Thread(target=work))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(MINUTE)
    assert all(contents_of(results[number]) == contents for number in parents)
    assert sent == dict.fromkeys(range(6), 2)


def test_chunks_are_passed_on_before_the_last_has_arrived(nodes) -> None:
    contents = random_bytes(2 * CHUNK_BYTES)
    path = nodes._folder / "growing"
    path.write_bytes(contents)
    held = HeldFiles()
    file = HeldFile(str(path), len(contents), whole=False)
    held.hold(V1, [file])
    with closing(ChunkServer(held, SECRET, HOST)) as server, socket.create_connection(server.address, MINUTE) as client:
        client.sendall(introduction(SECRET))
        assert receive(client, 1) == WELCOME
        held.arrived(file, 0, 7)
        client.sendall(REQUEST.pack(1, 0, 0))
        assert ANSWER.unpack(receive(client, ANSWER.size)) == (Answer.CHUNK, CHUNK_BYTES, 7)
        assert receive(client, CHUNK_BYTES) == contents[:CHUNK_BYTES]
        client.sendall(REQUEST.pack(1, 0, 1))
        assert ANSWER.unpack(receive(client, ANSWER.size))[0] == Answer.WAITING
        held.forget(V1)
        while (answer := ANSWER.unpack(receive(client, ANSWER.size))[0]) == Answer.WAITING:
            pass  # said before, if this thread was held up
        assert answer == Answer.GONE


class FaultyLine:
    """Forwards connections to a server, and does something to the bytes on their way back."""

    def __init__(self, to: Address, breaks_after: int | None = None, flips: Sequence[int] = ()) -> None:
        self._to, self._breaks_after, self._flips = to, breaks_after, sorted(flips)
        self._listening = socket.create_server((HOST, 0))
        self.address = Address(*self._listening.getsockname())
        self.connections, self.forwarded = 0, 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            server = socket.create_connection(self._to)
            threading.Thread(target=self._forward, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, True), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, back: bool) -> None:
        here = 0
        with suppress(OSError):
            while data := source.recv(1 << 16):
                changed = bytearray(data)
                if back:
                    here += len(data)
                    while self._flips and self._flips[0] < self.forwarded + len(data):
                        changed[self._flips.pop(0) - self.forwarded] ^= 1
                    self.forwarded += len(data)
                target.sendall(changed)
                if back and self._breaks_after is not None and here > self._breaks_after:
                    break
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()


def test_a_broken_connection_goes_on_at_the_chunk_it_missed(nodes) -> None:
    contents = [random_bytes(12 * CHUNK_BYTES)]
    files = nodes.written(V1, contents)
    with closing(FaultyLine(nodes["learner"].address, breaks_after=int(2.5 * CHUNK_BYTES))) as line:
        local = nodes["other"].fetch_files(V1, files, {"learner": [line.address]}, MINUTE)
    assert contents_of(local) == contents
    assert line.connections > chunk_fetch.CONNECTIONS
    assert line.forwarded < 1.7 * 12 * CHUNK_BYTES, "chunks that had arrived were not sent again"


def test_a_chunk_that_was_changed_on_the_way_is_fetched_again(nodes, caplog) -> None:
    contents = [random_bytes(6 * CHUNK_BYTES)]
    files = nodes.written(V1, contents)
    with closing(FaultyLine(nodes["learner"].address, flips=[CHUNK_BYTES // 2, 4 * CHUNK_BYTES])) as line:
        local = nodes["other"].fetch_files(V1, files, {"learner": [line.address]}, MINUTE)
    assert contents_of(local) == contents
    assert "a chunk arrived with a wrong checksum" in caplog.text


def test_a_chunk_that_is_always_wrong_ends_the_fetch(nodes, monkeypatch) -> None:
    files = nodes.written(V1, [random_bytes(100)])
    monkeypatch.setattr(HeldFile, "checksum", lambda self, chunk: 12345)
    with pytest.raises(ComponentFailed, match="chunk 0 of file 0 of version 1 arrived 5 times with a wrong checksum"):
        nodes.fetch_files("other", V1, files)


def test_who_does_not_know_the_secret_gets_nothing(nodes, monkeypatch, caplog) -> None:
    patient(monkeypatch)  # the last failure is told
    files = nodes.written(V1, [random_bytes(100)])
    stranger = nodes.make("stranger", secret=bytes(32))
    with pytest.raises(DeadlineExceeded, match="did not accept the run's secret"):
        stranger.fetch_files(V1, files, {"learner": [nodes["learner"].address]}, 0.5)
    assert "did not show the run's secret" in caplog.text
    client = socket.create_connection(nodes["learner"].address, MINUTE)
    with client, suppress(OSError):  # it may be reset at any moment
        client.sendall(REQUEST.pack(1, 0, 0) * 4)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""


@pytest.mark.parametrize("encrypted", [False, True])
def test_those_who_connect_and_say_nothing_hold_few_threads_and_nobody_up(nodes, encrypted) -> None:
    keys, contents = make_keys() if encrypted else None, [random_bytes(100)]
    learner = nodes["learner"] = nodes.make("learner", tls=keys)
    files, threads = nodes.written(V1, contents), threading.active_count()
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(learner.address, MINUTE)) for _ in range(3 * MOST_UNKNOWN)]
        first_ones = silent[: 2 * MOST_UNKNOWN]
        for client in first_ones:
            with suppress(ConnectionResetError):
                assert client.recv(1) == b"", "it is turned away long before its time is over"
        for thread in threading.enumerate():
            if any(thread.name == f"weights: serve {client.getsockname()}" for client in first_ones):
                thread.join(MINUTE)
        assert threading.active_count() <= threads + MOST_UNKNOWN
        local = nodes.make("friend", tls=keys).fetch_files(V1, files, {"learner": [learner.address]}, MINUTE)
        assert contents_of(local) == contents


def test_who_sends_a_byte_now_and_then_has_no_more_time_than_others(nodes, monkeypatch) -> None:
    monkeypatch.setattr(chunk_server, "INTRODUCTION_S", 0.5)
    assert is_turned_away_while_it_sends(nodes["learner"].address, introduction(SECRET)[:-1])


def test_encrypted_publications_and_strangers_with_other_keys_or_none(nodes, monkeypatch, caplog) -> None:
    patient(monkeypatch)  # who is turned away has heard so from the server, which has told of it before
    keys, contents = make_keys(), [random_bytes(3 * CHUNK_BYTES + 5), b"", random_bytes(9, seed=1)]
    learner, friend = nodes.make("learner", tls=keys), nodes.make("friend", tls=keys)
    nodes["learner"] = learner
    files = nodes.written(V1, contents)
    sources = {"learner": [learner.address]}
    assert contents_of(friend.fetch_files(V1, files, sources, MINUTE)) == contents
    for number, tls in enumerate((None, make_keys())):
        with pytest.raises(DeadlineExceeded, match="chunks are missing"):
            nodes.make(f"stranger-{number}", tls=tls).fetch_files(V1, files, sources, 0.5)
    assert "did not show the run's secret" in caplog.text
    assert contents_of(nodes.make("late", tls=keys).fetch_files(V1, files, sources, MINUTE)) == contents


def test_if_the_parent_dies_the_rest_comes_from_the_learner(nodes) -> None:
    contents = [random_bytes(8 * CHUNK_BYTES)]
    files = nodes.written(V1, contents)
    with closing(FaultyLine(nodes["learner"].address, breaks_after=0)) as parent:
        local = nodes["other"].fetch_files(V1, files, {"learner": [parent.address, nodes["learner"].address]}, MINUTE)
    assert contents_of(local) == contents
    with closing(socket.create_server((HOST, 0))) as closed:
        gone = Address(*closed.getsockname())
    local = nodes["third"].fetch_files(V1, files, {"learner": [gone, nodes["learner"].address]}, MINUTE)
    assert contents_of(local) == contents


def test_a_parent_that_is_silent_does_not_hold_up_every_chunk(nodes, monkeypatch) -> None:
    contents = [random_bytes(40 * CHUNK_BYTES)]
    files = nodes.written(V1, contents)
    with closing(socket.create_server((HOST, 0), backlog=64)) as silent:
        parent = Address(*silent.getsockname())
        patient(monkeypatch, parent)
        local = nodes["other"].fetch_files(V1, files, {"learner": [parent, nodes["learner"].address]}, MINUTE)
        silent.setblocking(False)
        asked = 0
        with suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                asked += 1
    assert contents_of(local) == contents
    assert 0 < asked < 2 * chunk_fetch.CONNECTIONS


def test_a_version_that_nobody_waits_for_any_more_gives_its_files_to_the_next_but_one(nodes, monkeypatch) -> None:
    """The engine that asked for version 1 is gone, and its bytes may still arrive when version 3 is to lie there."""
    monkeypatch.setattr(chunk_fetch, "SILENCE_S", 0.2)
    contents = {PolicyVersion(version): [random_bytes(2 * CHUNK_BYTES, version)] for version in (1, 2, 3, 4)}
    other, raised = nodes["other"], list[ComponentFailed]()
    with closing(socket.create_server((HOST, 0), backlog=64)) as silent:

        def ask() -> None:
            try:
                other.fetch_files(V1, files, {"learner": [Address(*silent.getsockname())]}, MINUTE)
            except ComponentFailed as error:
                raised.append(error)

        files = nodes.written(V1, contents[V1])
        asking = threading.Thread(target=ask)
        asking.start()
        with other._held._changed:
            assert other._held._changed.wait_for(lambda: V1 in other._held._versions, MINUTE)
        nodes.fetch_files("other", V2, nodes.written(V2, contents[V2]))
        third = nodes.fetch_files("other", V3, nodes.written(V3, contents[V3]))
        asking.join(MINUTE)
    assert [str(error) for error in raised] == ["version 3 of the weights takes the place of one that two others have overtaken"]
    fourth = PolicyVersion(4)
    later = nodes.fetch_files("other", fourth, nodes.written(fourth, contents[fourth]))
    assert (contents_of(third), contents_of(later)) == (contents[V3], contents[fourth])


def test_a_parent_that_fails_hands_its_children_to_the_learner(nodes) -> None:
    contents = [random_bytes(2 * CHUNK_BYTES)]
    files = nodes.written(V1, contents)
    with closing(socket.create_server((HOST, 0))) as silent, pytest.raises(DeadlineExceeded):
        nodes["parent"].fetch_files(V1, files, {"learner": [Address(*silent.getsockname())]}, 0.3)
    assert contents_of(nodes.fetch_files("child", V1, files, "parent")) == contents


@pytest.mark.parametrize("serves_first", [True, False])
def test_a_node_that_writes_and_fetches_hands_out_both(nodes, serves_first: bool) -> None:
    """Ranks on two nodes: each mirror serves its own ranks' files, and fetches those of the other node for its engines."""
    contents = [random_bytes(2 * CHUNK_BYTES, 1), random_bytes(CHUNK_BYTES, 2)]
    files = [nodes.written(V1, [contents[0]], "a")[0], nodes.written(V1, [contents[1]], "b")[0]]
    a, b = nodes.make("a"), nodes.make("b")
    b.serve(V1, files)
    if serves_first:
        a.serve(V1, files)
    assert contents_of(a.fetch_files(V1, files, {"b": [b.address]}, MINUTE)) == contents
    a.serve(V1, files)
    b.close()
    through = {"a": [a.address], "b": [a.address, b.address]}
    assert contents_of(nodes["c"].fetch_files(V1, files, through, MINUTE)) == contents, "all of it came from one"


def test_a_node_that_cannot_fetch_still_hands_out_what_its_ranks_wrote(nodes) -> None:
    contents = [random_bytes(2 * CHUNK_BYTES, 1), random_bytes(CHUNK_BYTES, 2)]
    files = [nodes.written(V1, [contents[0]], "a")[0], nodes.written(V1, [contents[1]], "b")[0]]
    a, b = nodes.make("a"), nodes.make("b")
    a.serve(V1, files)
    b.serve(V1, files)
    with closing(socket.create_server((HOST, 0))) as silent, pytest.raises(DeadlineExceeded):
        a.fetch_files(V1, files, {"b": [Address(*silent.getsockname())]}, 0.3)
    assert contents_of(b.fetch_files(V1, files, {"a": [a.address]}, MINUTE)) == contents


def test_a_source_that_dies_ends_the_fetch_by_its_deadline(nodes) -> None:
    files = nodes.written(V1, [random_bytes(100)])
    sources = {"learner": [nodes["learner"].address]}
    nodes["learner"].close()
    with pytest.raises(
        DeadlineExceeded, match=r"waited 0.5 s for version 1 .* 1 chunks are missing.*refused.*raise deadlines.publish"
    ):
        nodes["other"].fetch_files(V1, files, sources, 0.5)


def test_a_full_memory_file_system_is_an_error_with_a_remedy(nodes, monkeypatch) -> None:
    files = nodes.written(V1, [random_bytes(100)])

    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(MemoryFull, match=r"no room for 100 bytes of weights.*Two versions must fit"):
        nodes.fetch_files("other", V1, files)
    monkeypatch.undo()
    assert contents_of(nodes.fetch_files("other", V1, files)) == [random_bytes(100)], "room was made: the same version is fetched"


def test_a_server_that_had_too_many_files_open_accepts_connections_again(nodes, monkeypatch, caplog) -> None:
    monkeypatch.setattr(accepting_socket, "AGAIN_S", 0.01)
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, os.strerror(errno.EMFILE))] * 5

    def accept_later(listening: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    contents = [random_bytes(100)]
    assert contents_of(nodes.fetch_files("other", V1, nodes.written(V1, contents))) == contents
    told = [line for line in caplog.messages if "could not accept a connection: [Errno 24] Too many open files" in line]
    assert 1 <= len(told) == len(set(told)), "one line a minute for each server"


def test_a_server_that_found_no_thread_accepts_connections_again(nodes, monkeypatch, caplog) -> None:
    start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]

    def start_later(thread: threading.Thread) -> None:
        if failures and thread.name.startswith("weights: serve"):
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    contents = [random_bytes(100)]
    assert contents_of(nodes.fetch_files("other", V1, nodes.written(V1, contents))) == contents
    assert "found no thread to be served by" in caplog.text


def test_closing_removes_the_files_and_ends_connections(nodes, tmp_path: Path) -> None:
    local = nodes.fetch_files("other", V1, nodes.written(V1, [random_bytes(100)]))
    with socket.create_connection(nodes["other"].address, MINUTE) as client:
        client.sendall(introduction(SECRET))
        assert receive(client, 1) == WELCOME
        nodes["other"].close()
        nodes["other"].close()
        assert client.recv(1) == b""
    assert not any(Path(file.path).exists() for file in local)
    assert [path.name for path in (tmp_path / "other").iterdir()] == []


def test_files_of_a_killed_run_are_removed_and_no_others(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("asyncrl.weights.shm.memory_file.memory_file_system", lambda: tmp_path)
    killed, living = (Mirror(run, "n", SECRET, HOST) for run in ("killed[1]", "living"))
    with closing(killed), closing(living):
        source = tmp_path / "source"
        source.write_bytes(b"x")
        other = Mirror("source", "s", SECRET, HOST)
        with closing(other):
            files = (WeightFile(str(source), "s", 1),)
            other.serve(V1, files)
            for mirror in (killed, living):
                mirror.fetch_files(V1, files, {"s": [other.address]}, MINUTE)
            Mirror.remove_left_behind("killed[1]")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["asyncrl-living-mirror-n-even-0", "source"]
