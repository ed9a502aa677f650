"""Serves chunks of the weight files of one node to other nodes; see :mod:`asyncrl.weights.tcp.chunk_wire`.

What always holds: nobody gets a byte without having shown the run's secret; the bytes go from the file to the socket inside the
kernel, unless they are encrypted; a broken connection concerns nobody else; those who connect and say nothing hold few threads.
"""

import contextlib
import hmac
import io
import logging
import socket
import threading
import time

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.network.strangers import INTRODUCTION_S, Strangers
from asyncrl.core.network.tls import TlsKeys
from asyncrl.weights.tcp.accepting_socket import AcceptingSocket
from asyncrl.weights.tcp.chunk_wire import (
    ANSWER,
    REQUEST,
    SILENCE_S,
    WAITING_S,
    WELCOME,
    Address,
    Answer,
    BrokenConnection,
    introduction,
    receive,
    receive_by,
)
from asyncrl.weights.tcp.held_files import HeldFile, HeldFiles
from asyncrl.weights.tcp.unknown_clients import UnknownClients

logger = logging.getLogger(__name__)

_IDLE_S = 60.0
"""A client that has asked for nothing for so long is gone."""


class ChunkServer:
    """Listens at a free port of ``host`` from its making until :meth:`close`, in threads of its own.

    Args:
        held: what is served.
        secret: what clients must show.
        host: an address of this node.
        tls: the run's keys if its connections are encrypted.

    Raises:
        ComponentFailed: ``host`` is not an address of this node.
    """

    def __init__(self, held: HeldFiles, secret: bytes, host: str, tls: TlsKeys | None = None) -> None:
        self._held, self._introduction = held, introduction(secret)
        self._tls = None if tls is None else tls.server()
        self._listening = AcceptingSocket(host, "the mirror of weights")
        self.address = Address(*self._listening.address)
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._unknown = UnknownClients()
        self._lock = threading.Lock()
        self._strangers = Strangers(f"weights at {self.address}", logger)
        self._accepting = threading.Thread(target=self._accept, name="weights: accept", daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while (accepted := self._listening.accept()) is not None:
            connection, address = accepted
            thread = threading.Thread(
                target=self._serve, args=(connection, address), name=f"weights: serve {address}", daemon=True
            )
            with self._lock:
                self._connections[thread] = connection
            if not self._unknown.enter(thread, connection):
                self._strangers.turned_away(address, "found no thread to be served by")
                with self._lock:
                    del self._connections[thread]

    def _serve(self, connection: socket.socket, address: object) -> None:
        with contextlib.ExitStack() as closing:
            closing.callback(self._ended)
            closing.enter_context(connection)
            try:
                welcomed = self._welcomed(connection)
                if welcomed is None:
                    self._strangers.turned_away(address, "did not show the run's secret")
                    return
                connection = closing.enter_context(welcomed)
                files = _OpenFiles(closing)
                connection.settimeout(_IDLE_S)
                while True:
                    version, number, chunk = REQUEST.unpack(receive(connection, REQUEST.size))
                    self._answer(connection, files, PolicyVersion(version), number, chunk)
            except (BrokenConnection, OSError) as error:
                logger.debug("the connection from %s ended: %s", address, error)

    def _welcomed(self, connection: socket.socket) -> socket.socket | None:
        """Return the connection, encrypted if it is to be, once the client has shown the secret; None if it does not."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ends = time.monotonic() + INTRODUCTION_S
        connection.settimeout(INTRODUCTION_S)
        try:
            if self._tls is not None:
                connection = encrypted = self._unknown.wrapped(connection, self._tls)
                with self._lock:
                    self._connections[threading.current_thread()] = encrypted
                encrypted.do_handshake()
            shown = receive_by(connection, len(self._introduction), ends)
        except (BrokenConnection, OSError):
            return None
        if not hmac.compare_digest(shown, self._introduction):
            return None
        self._unknown.leave()
        connection.sendall(WELCOME)
        return connection

    def _answer(self, connection: socket.socket, files: "_OpenFiles", version: PolicyVersion, number: int, chunk: int) -> None:
        while True:
            answer, file, checksum = self._held.find(version, number, chunk, WAITING_S)
            if file is None:
                connection.sendall(ANSWER.pack(answer, 0, 0))
                if answer is Answer.GONE:
                    return
                continue
            begin, end = file.extent(chunk)
            connection.settimeout(SILENCE_S)
            connection.sendall(ANSWER.pack(answer, end - begin, checksum))
            connection.sendfile(files.of(file), begin, end - begin)
            connection.settimeout(_IDLE_S)
            return

    def _ended(self) -> None:
        self._unknown.leave()
        with self._lock:
            self._connections.pop(threading.current_thread(), None)

    def close(self) -> None:
        """End all connections. Does nothing the second time."""
        self._listening.close()
        self._accepting.join()
        with self._lock:
            connections = dict(self._connections)
        for connection in connections.values():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in connections:
            thread.join(2 * WAITING_S)
        self._strangers.close()


class _OpenFiles:
    """The files that one connection has open."""

    def __init__(self, closing: contextlib.ExitStack) -> None:
        self._closing = closing
        self._files: dict[str, io.FileIO] = {}

    def of(self, file: HeldFile) -> io.FileIO:
        if file.path not in self._files:
            self._files[file.path] = self._closing.enter_context(io.FileIO(file.path))
        return self._files[file.path]
