"""Broadcasts between two learner ranks, which send from this process, and workers of engines in processes of their own.

Gloo stands for NCCL; all else is what runs with GPUs.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import msgspec
import pytest
import torch
from fork_server import WITH_TORCH
from gloo_collective import Gloo
from slow_client import is_turned_away_while_it_sends

from asyncrl.core.errors import AsyncRLError, DeadlineExceeded
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import BroadcastAddress, Publication, Shard
from asyncrl.weights.fingerprint import fingerprint
from asyncrl.weights.nccl import broadcast_sender, broadcast_wire
from asyncrl.weights.nccl.accepting_socket import MOST_UNKNOWN
from asyncrl.weights.nccl.broadcast_receiver import BroadcastReceiver
from asyncrl.weights.nccl.broadcast_sender import BroadcastSender
from asyncrl.weights.nccl.broadcast_wire import BrokenConnection, introduction, pieces, supervised
from asyncrl.weights.nccl.collective import Group
from asyncrl.weights.publication_merge import merge
from asyncrl.weights.shm.shared_tensors import SharedMemory

CPU = torch.device("cpu")
HOST = "127.0.0.1"
V1, V2 = PolicyVersion(1), PolicyVersion(2)
MINUTE = 60.0
START_S = 200.0
SECONDS = 5.0
"""A deadline that is to pass."""


class Telling(Gloo):
    """Gloo whose receiving member tells that it receives: it has joined the groups of all ranks."""

    def __init__(self, receives: Event) -> None:
        self._receives = receives

    def join(self, token: bytes, member: int, members: int, device: torch.device) -> Group:
        group = super().join(token, member, members, device)
        receive = group.receive

        def telling(piece: torch.Tensor) -> None:
            self._receives.set()
            receive(piece)

        group.receive = telling  # type: ignore[method-assign]
        return group


def work(pipe: Connection, up: Event, receives: Event, engine: str, worker: int, workers: int, rooms: list[bool]) -> None:
    """Be a worker of an engine: take each publication that comes, and answer what became of it."""
    up.set()
    room = iter(rooms)
    receiver = BroadcastReceiver(engine, worker, workers, CPU, Telling(receives), lambda size, device: next(room))
    while (publication := pipe.recv()) is not None:
        try:
            fetched = receiver.receive_publication(publication)
            found = sum(
                fingerprint(Shard(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor))
                for name, tensor in receiver.read(publication)
            )
            pipe.send((fetched, found % 2**64))
        except AsyncRLError as error:
            pipe.send(error.args[0])
    receiver.close()


class Worker:
    """A worker's process.

    Attributes:
        up: set once it has imported what takes seconds, and takes publications.
        receives: set once it receives for the first time.
    """

    def __init__(self, engine: str, worker: int, workers: int, rooms: list[bool]) -> None:
        self._pipe, theirs = WITH_TORCH.Pipe()
        self.up, self.receives = WITH_TORCH.Event(), WITH_TORCH.Event()
        arguments = (theirs, self.up, self.receives, engine, worker, workers, rooms)
        self._process = WITH_TORCH.Process(target=work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def take(self, publication: Publication) -> None:
        assert self.up.wait(START_S), f"not up within {START_S} s"
        self._pipe.send(publication)

    def answer(self, seconds: float = MINUTE) -> object:
        """``(fetched, fingerprint)``, or what was raised."""
        assert self._pipe.poll(seconds), f"no answer within {seconds} s"
        return self._pipe.recv()

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


class Ranks:
    """Two pipeline stages, of which one has the embedding and half of a layer's weight, and a rank with copies alone."""

    def __init__(self, folder: Path, stack: ExitStack, collectives: list[Gloo], seconds: float) -> None:
        self._files = [stack.enter_context(closing(SharedMemory("run", rank, str(folder)))) for rank in range(3)]
        self.senders = [
            stack.enter_context(closing(BroadcastSender(rank, HOST, CPU, seconds, collective)))
            for rank, collective in enumerate([*collectives, Gloo()])
        ]

    def publish(self, version: PolicyVersion, rows: int = 40) -> Publication:
        torch.manual_seed(version)
        weight = torch.randn(rows, 30).bfloat16()
        first = [Shard("embed", (50, 8), (0, 0), torch.randn(50, 8)), Shard("w", (rows, 30), (0, 0), weight[:, :15].clone())]
        second = [Shard("w", (rows, 30), (0, 15), weight[:, 15:].clone()), Shard("norm", (7,), (0,), torch.randn(7))]
        shards = zip(self.senders, self._files, (first, second, []), strict=True)
        return merge([sender.offer(file.write(version, part)) for sender, file, part in shards])

    def patient(self, publication: Publication) -> Publication:
        """The publication with a deadline that is not to pass, on both sides."""
        for sender in self.senders:
            sender._seconds = MINUTE
        addresses = tuple(msgspec.structs.replace(address, seconds=MINUTE) for address in publication.senders)
        return msgspec.structs.replace(publication, senders=addresses)


class Gate(Gloo):
    """Gloo whose sending member waits at the first piece until the gate is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def join(self, token: bytes, member: int, members: int, device: torch.device) -> Group:
        group = super().join(token, member, members, device)
        send = group.send

        def waiting(piece: torch.Tensor) -> None:
            self.reached.set()
            self.opened.wait(MINUTE)
            send(piece)

        group.send = waiting  # type: ignore[method-assign]
        return group


class Meeting(Gloo):
    """Gloo whose sending members wait at each piece until those of the other rank are there too."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self._barrier = barrier

    def join(self, token: bytes, member: int, members: int, device: torch.device) -> Group:
        group = super().join(token, member, members, device)
        send = group.send

        def meeting(piece: torch.Tensor) -> None:
            self._barrier.wait(MINUTE)
            send(piece)

        group.send = meeting  # type: ignore[method-assign]
        return group


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def engine(stack: ExitStack, name: str, *rooms: list[bool]) -> list[Worker]:
    """An engine with as many workers as there are lists, which say whether a worker has room each time that it is asked."""
    return [stack.enter_context(closing(Worker(name, number, len(rooms), room))) for number, room in enumerate(rooms)]


def test_each_worker_gets_what_all_ranks_wrote_with_and_without_room_for_it(tmp_path, stack) -> None:
    ranks = Ranks(tmp_path, stack, [Gloo(), Gloo()], MINUTE)
    roomy, cramped = engine(stack, "roomy", [True], [True]), engine(stack, "cramped", [True], [False])
    late = engine(stack, "late", [False])
    for version in (V1, V2):
        publication = ranks.publish(version)
        taking = roomy + (cramped + late if version == V1 else [])
        for worker in taking:
            worker.take(publication)
        fetched = {worker: worker.answer() for worker in taking}
        assert {found for _, found in fetched.values()} == {publication.fingerprint}
        assert [fetched[worker][0] for worker in roomy] == [True, True], "memory that is there is used again"
        if version == V1:
            assert not any(fetched[worker][0] for worker in cramped + late), "all workers of an engine do alike"


def test_pipeline_stages_send_side_by_side(tmp_path, stack) -> None:
    barrier = threading.Barrier(2)
    ranks = Ranks(tmp_path, stack, [Meeting(barrier), Meeting(barrier)], MINUTE)
    (worker,) = engine(stack, "one", [True])
    worker.take(ranks.publish(V1))
    assert worker.answer() != "a rank that waits for the other one to send would never have"


def test_an_engine_that_dies_in_the_middle_concerns_no_other(tmp_path, stack) -> None:
    gate = Gate()
    ranks = Ranks(tmp_path, stack, [gate, Gloo()], MINUTE)
    lost, other = engine(stack, "lost", [True], [True]), engine(stack, "other", [True])
    publication = ranks.publish(V1)
    for worker in lost:
        worker.take(publication)
    assert gate.reached.wait(MINUTE)
    assert all(worker.receives.wait(MINUTE) for worker in lost)
    lost[1].signal(signal.SIGKILL)
    assert "in the middle of it; see the logs of both; if NCCL cannot pass" in str(lost[0].answer(MINUTE / 2))
    gate.opened.set()
    (successor,) = engine(stack, "successor", [True])
    for worker in (*other, successor):
        worker.take(publication)
        assert worker.answer() == (True, publication.fingerprint)


def test_an_engine_that_freezes_in_the_middle_is_given_up_at_the_deadline(tmp_path, stack, caplog) -> None:
    gate = Gate()
    ranks = Ranks(tmp_path, stack, [gate, Gloo()], SECONDS)
    lost, other = engine(stack, "lost", [True, True], [True]), engine(stack, "other", [True])
    first = ranks.publish(V1, rows=600_000)  # more than sockets hold
    assert all(worker.up.wait(START_S) for worker in lost), "else one would wait for the other for longer than the deadline"
    for worker in lost:
        worker.take(first)
    assert gate.reached.wait(MINUTE)
    assert all(worker.receives.wait(MINUTE) for worker in lost)
    lost[1].signal(signal.SIGSTOP)
    gate.opened.set()
    lost[0].answer()  # it may have got everything
    newest = ranks.publish(V2)
    lost[0].take(newest)
    assert "learner rank" in str(lost[0].answer(MINUTE / 2))  # gloo itself gives up later
    ends = time.monotonic() + MINUTE  # the rank's own thread says it, and may be later than the worker
    while "learner rank 0 sends nothing to engine lost any more" not in caplog.text:
        assert time.monotonic() < ends
        time.sleep(0.05)
    other[0].take(ranks.patient(newest))
    assert other[0].answer() == (True, newest.fingerprint)


def test_a_worker_whose_fellow_never_comes_gives_up(tmp_path, stack) -> None:
    ranks = Ranks(tmp_path, stack, [Gloo(), Gloo()], 1.0)
    alone = stack.enter_context(closing(Worker("half", 0, 2, [True])))
    alone.take(ranks.publish(V1))
    assert "worker 0 of engine half waited 1 s for the learner rank at" in str(alone.answer())


def test_a_version_that_is_gone_is_said_to_be(tmp_path, stack) -> None:
    ranks = Ranks(tmp_path, stack, [Gloo(), Gloo()], MINUTE)
    (worker,) = engine(stack, "one", [True, True])
    old = ranks.publish(PolicyVersion(0))
    for version in range(1, 5):
        newest = ranks.publish(PolicyVersion(version))
    worker.take(old)
    assert "does not hold version 0 any more" in str(worker.answer())
    worker.take(newest)
    assert worker.answer() == (True, newest.fingerprint), "it connects again"


def test_a_rank_that_ends_is_noticed_at_once(tmp_path, stack) -> None:
    gate = Gate()
    ranks = Ranks(tmp_path, stack, [gate, Gloo()], MINUTE)
    (worker,) = engine(stack, "one", [True])
    worker.take(ranks.publish(V1))
    assert gate.reached.wait(MINUTE)
    began = time.monotonic()
    ranks.senders[0].close()
    assert "in the middle of it" in str(worker.answer())
    assert time.monotonic() - began < MINUTE / 2
    gate.opened.set()


def test_who_does_not_show_the_secret_gets_nothing(tmp_path, stack) -> None:
    ranks = Ranks(tmp_path, stack, [Gloo(), Gloo()], MINUTE)
    address = ranks.publish(V1).senders[0]
    with socket.create_connection((address.host, address.port), MINUTE) as client:
        client.sendall(introduction(bytes(32)))
        assert client.recv(1) == b""
    assert str(address.secret) not in repr(ranks.publish(V2))


def test_of_many_unknown_clients_the_first_is_told_and_slow_ones_have_no_more_time(monkeypatch, caplog) -> None:
    monkeypatch.setattr(broadcast_sender, "INTRODUCTION_S", 0.5)
    with closing(BroadcastSender(0, HOST, CPU, MINUTE, Gloo())) as sender:
        there = (sender._address.host, sender._address.port)
        for _ in range(20):
            with socket.create_connection(there, MINUTE) as client:
                client.sendall(introduction(bytes(32)))
                assert client.recv(1) == b""
        assert is_turned_away_while_it_sends(there, introduction(sender._address.secret)[:-1])
    told = [record.getMessage() for record in caplog.records if record.name == broadcast_sender.__name__]
    assert len(told) == 2
    assert "19 other clients turned away" in told[1]


def test_those_who_connect_and_say_nothing_hold_few_threads_and_no_engine_up(tmp_path, stack) -> None:
    ranks, (worker,) = Ranks(tmp_path, stack, [Gloo(), Gloo()], MINUTE), engine(stack, "engine", [True])
    publication, threads = ranks.publish(V1), threading.active_count()
    address = publication.senders[0]
    silent = [
        stack.enter_context(socket.create_connection((address.host, address.port), MINUTE)) for _ in range(3 * MOST_UNKNOWN)
    ]
    first_ones = silent[: 2 * MOST_UNKNOWN]
    for client in first_ones:
        with suppress(ConnectionResetError):
            assert client.recv(1) == b"", "it is turned away long before its time is over"
    for thread in threading.enumerate():
        if any(thread.name == f"weights: greet {client.getsockname()}" for client in first_ones):
            thread.join(MINUTE)
    assert threading.active_count() <= threads + MOST_UNKNOWN
    worker.take(publication)
    assert worker.answer() == (True, publication.fingerprint)


def test_a_rank_that_nobody_answers_for_is_told(tmp_path) -> None:
    with socket.create_server((HOST, 0)) as silent:
        address = BroadcastAddress(HOST, silent.getsockname()[1], bytes(32), 1.0)
        receiver = BroadcastReceiver("one", 0, 1, CPU, Gloo(), lambda size, device: True)
        with closing(SharedMemory("run", 0, str(tmp_path))) as files:
            part = files.write(V1, [Shard("norm", (7,), (0,), torch.ones(7))])
            publication = Publication(**{name: getattr(part, name) for name in part.__struct_fields__} | {"senders": (address,)})
            with pytest.raises(AsyncRLError, match=r"waited 1 s for the learner rank at .* to answer; .*weights.kind to ray"):
                receiver.receive_publication(publication)


def test_what_hangs_ends_by_the_deadline_and_what_breaks_is_told() -> None:
    never, (ours, theirs) = threading.Event(), socket.socketpair()
    with ours, theirs:
        with pytest.raises(DeadlineExceeded, match=r"rank waited 0\.05 s for engine; see the logs"):
            supervised(never.wait, [ours], 0.05, "rank", "engine")
        theirs.sendall(b"the next request")  # its part is done; that is no end
        assert supervised(lambda: never.wait(0.05), [ours], MINUTE, "rank", "engine") is False
        theirs.close()
        with pytest.raises(BrokenConnection, match="refused"):
            supervised(lambda: (_ for _ in ()).throw(RuntimeError("refused")), [], MINUTE, "rank", "engine")
    never.set()


def test_extents_are_cut_into_pieces(monkeypatch) -> None:
    monkeypatch.setattr(broadcast_wire, "PIECE_BYTES", 10)
    assert pieces((5, 30)) == [(5, 15), (15, 25), (25, 30)]
    assert pieces((5, 5)) == []
