"""A learner rank's end of the ``nccl`` transport: sends the rank's files to the GPUs of each engine that asks.

What always holds: ranks know nothing of each other, so that all of them, pipeline stages too, send side by side; every engine has
a group of its own with each rank, so that one that is slow, dies or comes new concerns no other; nobody gets a byte without the
secret, and those who connect and say nothing hold few threads; nothing here waits for ever but for the next request, and training
waits for none of it.
"""

import contextlib
import hmac
import logging
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import wait

import msgspec
import torch

from asyncrl.core.errors import DeadlineExceeded
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.network.unknown_clients import INTRODUCTION_S, UnknownClients
from asyncrl.core.publication import BroadcastAddress, Publication
from asyncrl.device.pinning import PinnedFiles
from asyncrl.weights.nccl.accepting_socket import AcceptingSocket, WaitingClients
from asyncrl.weights.nccl.broadcast_wire import (
    SECRET_BYTES,
    WELCOME,
    Answer,
    BrokenConnection,
    Extent,
    Hello,
    Reply,
    Request,
    hear,
    introduction,
    pieces,
    receive_by,
    supervised,
    tell,
)
from asyncrl.weights.nccl.collective import Collective, Group, Nccl

logger = logging.getLogger(__name__)

_VERSIONS = 4
"""Versions that are known at once; engines ask for no older ones, see
:data:`asyncrl.weights.delivery_rules.VERSIONS_IN_FILES`."""


class BroadcastSender:
    """Listens at a free port of ``host`` from its making until :meth:`close`, in threads of its own.

    Args:
        rank: number of the learner's rank.
        host: an address of this node, which engines reach.
        device: where the broadcasts are sent from.
        seconds: the deadline of each step: all workers of an engine asking, the making of their group, a publication.
        collective: what broadcasts.

    Raises:
        ComponentFailed: ``host`` is not an address of this node.
    """

    def __init__(self, rank: int, host: str, device: torch.device, seconds: float, collective: Collective | None = None) -> None:
        self._name, self._device, self._seconds = f"learner rank {rank}", device, seconds
        self._collective = collective or Nccl()
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._introduction = introduction(self._secret)
        self._files: dict[PolicyVersion, str] = {}
        self._mappings = PinnedFiles()
        self._coming: dict[str, _Engine] = {}
        self._served: set[_Engine] = set()
        self._lock = threading.Lock()
        self._waiting = WaitingClients()
        self._unknown_clients = UnknownClients(self._name, logger)
        self._listening = AcceptingSocket(host, self._name)
        there, port = self._listening.address
        self._address = BroadcastAddress(there, port, self._secret, seconds)
        threading.Thread(target=self._accept, name="weights: accept", daemon=True).start()

    def offer(self, part: Publication) -> Publication:
        """Hand out what this rank has just written, and return it with the address where it is handed out."""
        (file,) = part.files
        with self._lock:
            self._files[part.version] = file.path
            for old in sorted(self._files)[:-_VERSIONS]:
                del self._files[old]
        return msgspec.structs.replace(part, senders=(self._address,))

    def _accept(self) -> None:
        while (accepted := self._listening.accept()) is not None:
            connection, address = accepted
            thread = threading.Thread(target=self._greet, args=accepted, name=f"weights: greet {address}", daemon=True)
            if not self._waiting.enter(thread, connection):
                self._unknown_clients.turned_away(address, "found no thread to be served by")

    def _greet(self, connection: socket.socket, address: object) -> None:
        """Let a worker in; the one that makes its engine complete has this thread serve them."""
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not hmac.compare_digest(self._shown(connection), self._introduction):
                self._unknown_clients.turned_away(address, "did not show the run's secret")
                connection.close()
                return
            connection.settimeout(INTRODUCTION_S)
            connection.sendall(WELCOME)
            hello = hear(connection, Hello)
        except (BrokenConnection, OSError) as error:
            logger.warning("%s: %s connected, and did not say which worker it is: %s", self._name, address, error)
            connection.close()
            return
        finally:
            self._waiting.leave()
        connection.settimeout(self._seconds)
        engine = self._with(hello, connection)
        if engine is None:
            return
        try:
            self._serve(engine, hello.engine)
        except (BrokenConnection, DeadlineExceeded, OSError) as error:
            logger.warning("%s sends nothing to engine %s any more: %s", self._name, hello.engine, error)
        finally:
            with self._lock:
                self._served.remove(engine)
            engine.close()

    def _shown(self, connection: socket.socket) -> bytes:
        """Return the secret that a client shows; empty if it shows none in time, however slowly it sends."""
        try:
            return receive_by(connection, len(self._introduction), time.monotonic() + INTRODUCTION_S)
        except (BrokenConnection, OSError):
            return b""

    def _with(self, hello: Hello, connection: socket.socket) -> "_Engine | None":
        """Return the engine of a worker if it is complete with it, else None."""
        with self._lock:
            for name, engine in list(self._coming.items()):
                if time.monotonic() > engine.ends:
                    self._coming.pop(name).close()
            engine = self._coming.setdefault(hello.engine, _Engine(hello.workers, time.monotonic() + self._seconds))
            engine.workers[hello.worker] = connection
            if len(engine.workers) < engine.expected:
                return None
            self._served.add(self._coming.pop(hello.engine))
            return engine

    def _serve(self, engine: "_Engine", name: str) -> None:
        """Answer the requests of an engine, until it ends or misses a deadline."""
        workers = list(engine.workers.values())
        while True:
            wait(workers)  # until the next publication, or their end
            asked = [hear(worker, Request) for worker in workers]
            if len({(each.version, each.extents) for each in asked}) != 1:
                raise BrokenConnection(f"its workers asked for different things: versions {[each.version for each in asked]}")
            with self._lock:
                path = self._files.get(asked[0].version)
            answer = Answer.GONE if path is None else Answer.SEND if all(each.ready for each in asked) else Answer.LATER
            token = b""
            if answer is Answer.SEND and engine.group is None:
                token = supervised(self._collective.token, workers, self._seconds, self._name, "NCCL to name a group")
            for worker in workers:
                tell(worker, Reply(answer, token))
            if path is None or answer is not Answer.SEND:
                continue
            if token:
                join = partial(self._collective.join, token, 0, 1 + len(workers), self._device)
                owner = f"the {len(workers)} workers of engine {name} to join its group"
                engine.group = supervised(join, workers, self._seconds, self._name, owner)
            assert engine.group is not None
            send = partial(self._send, engine.group, path, asked[0].extents)
            owner = f"engine {name} to take version {asked[0].version}"
            supervised(send, workers, self._seconds, self._name, owner)

    def _send(self, group: Group, path: str, extents: Sequence[Extent]) -> None:
        with self._lock:
            memory = self._mappings.bytes_of(path)
        for extent in extents:
            for begin, end in pieces(extent):
                group.send(memory[begin:end])
        group.wait()

    def close(self) -> None:
        """End all groups and connections. Does nothing the second time."""
        self._listening.close()
        with self._lock:
            for engine in (*self._coming.values(), *self._served):
                engine.end()
        self._mappings.close()
        self._unknown_clients.close()


class _Engine:
    """The connections to the workers of one engine, and their group, once there is one.

    Attributes:
        expected: how many workers it has.
        ends: until when all must have connected.
    """

    def __init__(self, expected: int, ends: float) -> None:
        self.expected, self.ends = expected, ends
        self.workers: dict[int, socket.socket] = {}
        self.group: Group | None = None

    def end(self) -> None:
        """Have the thread that serves it end."""
        for worker in self.workers.values():
            with contextlib.suppress(OSError):  # it is closed already
                worker.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connections and leave the group."""
        for worker in self.workers.values():
            worker.close()
        if self.group is not None:
            self.group.abort()
