"""Fetches the weight files of a publication from other nodes, chunk by chunk; see :mod:`asyncrl.weights.tcp.chunk_wire`.

What always holds: a chunk counts once its bytes have the checksum that came with them; one that was missed, because a connection
broke or its bytes were wrong, is fetched again, from the next source if there is another, and no chunk that counts is fetched
twice; a source that fails again and again is asked no more while another one answers; the fetch ends by its deadline.
"""

import logging
import socket
import ssl
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from asyncrl.core.errors import ComponentFailed, DeadlineExceeded
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.network.tls import TlsKeys
from asyncrl.weights.tcp.chunk_wire import (
    ANSWER,
    CHUNK_BYTES,
    REQUEST,
    SILENCE_S,
    WELCOME,
    Address,
    Answer,
    BrokenConnection,
    introduction,
    receive,
    receive_into,
)

logger = logging.getLogger(__name__)

CONNECTIONS = 4
"""Connections side by side: while one checks a chunk, others receive."""
_WRONG_IN_A_ROW = 5
"""The fetch fails if the same chunk arrives with a wrong checksum this often."""
_GIVEN_UP = CONNECTIONS
"""A source that failed this often in a row is asked only if all have: it may be cut off, and each time would cost its silence."""
_RETRY_S = 0.2
"""Pause after all sources of a chunk failed, before they are tried again."""


class FetchedFile(NamedTuple):
    """One file that is fetched.

    Attributes:
        number: its number in the publication.
        memory: where its bytes are to be; as long as the file.
        sources: the servers that have it, the preferred one first; the last is on the node where the learner wrote it.
        arrived: called with the number of a chunk that is there, and its checksum.
    """

    number: int
    memory: memoryview
    sources: Sequence[Address]
    arrived: Callable[[int, int], None]


class _Wanted(NamedTuple):
    """A chunk that is still to be fetched; ``failures`` counts what went wrong, ``wrong`` the wrong checksums among that."""

    file: FetchedFile
    chunk: int
    failures: int = 0
    wrong: int = 0


class ChunkFetch:
    """Fetches all files of one version. Used once.

    Args:
        waiter: who fetches, for error messages.
        seconds: the deadline, from now on.
        tls: the run's keys if its connections are encrypted.
    """

    def __init__(
        self,
        version: PolicyVersion,
        files: Sequence[FetchedFile],
        secret: bytes,
        waiter: str,
        seconds: float,
        tls: TlsKeys | None = None,
    ) -> None:
        self._version, self._secret, self._waiter, self._seconds = version, secret, waiter, seconds
        self._tls = None if tls is None else tls.client()
        self._ends = time.monotonic() + seconds
        chunks = max((-(-len(file.memory) // CHUNK_BYTES) for file in files), default=0)
        # In the order of chunks over all files, so that sources on several nodes send at the same time.
        self._wanted = deque(
            _Wanted(file, chunk) for chunk in range(chunks) for file in files if chunk * CHUNK_BYTES < len(file.memory)
        )
        self._missing = len(self._wanted)
        self._failed = Counter[Address]()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._error: Exception | None = None
        self._last_failure = "no source answered"

    def run(self) -> None:
        """Fetch everything.

        Raises:
            DeadlineExceeded: not all chunks have arrived in time.
            ComponentFailed: no source has the version any more, or a chunk is wrong again and again.
        """
        if not self._missing:
            return
        threads = [
            threading.Thread(target=self._work, name=f"weights: fetch {self._version}", daemon=True) for _ in range(CONNECTIONS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        connections = _Connections(self._secret, self._tls)
        try:
            while (wanted := self._next()) is not None:
                self._try(connections, wanted)
        except Exception as error:  # noqa: BLE001 - raised by run()
            self.stop(error)
        finally:
            connections.close()

    def _next(self) -> _Wanted | None:
        """Return the next chunk to fetch. None when all have arrived or the fetch has failed."""
        while not self._ended.is_set():
            if time.monotonic() >= self._ends:
                owner = f"version {self._version} of the weights, of which {self._missing} chunks are missing"
                remedy = f"the last failure: {self._last_failure}; check the network, or raise deadlines.publish"
                raise DeadlineExceeded(self._waiter, owner, self._seconds, remedy)
            with self._lock:
                if self._wanted:
                    return self._wanted.popleft()
            self._ended.wait(_RETRY_S)  # the last chunks are under way; one of them may yet have to be fetched again
        return None

    def _source(self, wanted: _Wanted) -> Address:
        """Where to fetch a chunk from next: from its sources in turn, without those that were given up."""
        sources = wanted.file.sources
        in_turn = [sources[(wanted.failures + turn) % len(sources)] for turn in range(len(sources))]
        with self._lock:
            return next((each for each in in_turn if self._failed[each] < _GIVEN_UP), in_turn[0])

    def _try(self, connections: "_Connections", wanted: _Wanted) -> None:
        source = self._source(wanted)
        try:
            self._fetch(connections, wanted, source)
        except (BrokenConnection, OSError) as error:
            connections.drop(source)
            wrong = wanted.wrong + isinstance(error, _WrongChecksum)
            self._again(wanted, source, wrong, f"{source}: {str(error) or type(error).__name__}")
        else:
            with self._lock:
                self._failed[source] = 0
                self._missing -= 1
                if not self._missing:
                    self._ended.set()

    def _fetch(self, connections: "_Connections", wanted: _Wanted, source: Address) -> None:
        begin = wanted.chunk * CHUNK_BYTES
        memory = wanted.file.memory[begin : begin + CHUNK_BYTES]
        patience = min(SILENCE_S, max(self._left(), _RETRY_S))
        connection = connections.to(source, patience)
        connection.sendall(REQUEST.pack(self._version, wanted.file.number, wanted.chunk))
        while True:
            answer, size, checksum = ANSWER.unpack(receive(connection, ANSWER.size))
            if answer == Answer.CHUNK:
                break
            if answer == Answer.GONE:
                self._gone(wanted, source)
                raise BrokenConnection("it does not have this version")
            if self._ended.is_set() or not self._left():
                raise BrokenConnection("it waited for a chunk until the deadline")
        if size != len(memory):
            raise ComponentFailed(
                f"version {self._version} at {source}: chunk {wanted.chunk} of file {wanted.file.number} has {size} bytes "
                f"instead of {len(memory)}; the file is not that of the publication"
            )
        receive_into(connection, memory)
        if zlib.crc32(memory) != checksum:
            if wanted.wrong + 1 >= _WRONG_IN_A_ROW:
                raise ComponentFailed(
                    f"{self._waiter}: chunk {wanted.chunk} of file {wanted.file.number} of version {self._version} arrived "
                    f"{_WRONG_IN_A_ROW} times with a wrong checksum, the last time from {source}; its memory or the "
                    "network is faulty"
                )
            raise _WrongChecksum("a chunk arrived with a wrong checksum")
        wanted.file.arrived(wanted.chunk, checksum)

    def _gone(self, wanted: _Wanted, source: Address) -> None:
        """Fail if the last source, on the node where the file was written, does not have the version."""
        if source == wanted.file.sources[-1]:
            raise ComponentFailed(
                f"version {self._version} of the weights is gone at {source}, where the learner wrote it: it was "
                f"overwritten, or its mirror was started again, before {self._waiter} had fetched it"
            )

    def _again(self, wanted: _Wanted, source: Address, wrong: int, failure: str) -> None:
        again = wanted._replace(failures=wanted.failures + 1, wrong=wrong)
        with self._lock:
            first, self._last_failure = failure != self._last_failure, failure
            self._failed[source] += 1
            self._wanted.appendleft(again)
        if first:
            logger.warning("%s: %s; chunk %d is fetched again", self._waiter, failure, wanted.chunk)
        if again.failures % len(again.file.sources) == 0:
            self._ended.wait(_RETRY_S)

    def _left(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    def stop(self, error: Exception) -> None:
        """Have :meth:`run` raise ``error`` soon, unless it has ended."""
        with self._lock:
            self._error = self._error or error
        self._ended.set()


class _WrongChecksum(BrokenConnection):
    """The bytes are not those that the server meant."""


class _Connections:
    """The connections of one thread, at most one to each source."""

    def __init__(self, secret: bytes, tls: ssl.SSLContext | None) -> None:
        self._introduction, self._tls = introduction(secret), tls
        self._open: dict[Address, socket.socket] = {}

    def to(self, source: Address, patience: float) -> socket.socket:
        """Return a connection to ``source``, where the secret was shown. It breaks if it is silent for ``patience`` seconds.

        Raises:
            BrokenConnection: the server did not accept the secret, or ended meanwhile.
            OSError: it cannot be reached.
        """
        known = self._open.get(source)
        if known is None:
            known = self._open[source] = socket.create_connection(source, timeout=patience)
            known.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                known = self._open[source] = self._tls.wrap_socket(known)
            known.sendall(self._introduction)
            try:
                welcome = receive(known, len(WELCOME))
            except (BrokenConnection, ConnectionResetError) as error:
                raise BrokenConnection("it did not accept the run's secret, or ended") from error
            if welcome != WELCOME:
                raise BrokenConnection("what listens there is not a server of weights")
        known.settimeout(patience)
        return known

    def drop(self, source: Address) -> None:
        """Close the connection to ``source``, if there is one."""
        connection = self._open.pop(source, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close all."""
        for source in list(self._open):
            self.drop(source)
