"""The process that runs commands for one client: ``python -m asyncrl.envs.sandbox.supervisor BACKEND...``.

It reads requests from its standard input and writes replies to its standard output, and forks a process of its own for each run
(:mod:`asyncrl.envs.sandbox.attempt`). It is small, so a fork takes about a millisecond, and it knows nothing that a command
could steal. What always holds: each ``Start`` gets exactly one reply, and when the client is gone, every run is ended.
"""

import gc
import os
import selectors
import signal
import sys
import tempfile
import time
from collections.abc import Sequence

from asyncrl.envs.sandbox.attempt import attempt
from asyncrl.envs.sandbox.backends.backend import Backend, Running
from asyncrl.envs.sandbox.backends.bubblewrap import Bubblewrap
from asyncrl.envs.sandbox.backends.sandlock import Sandlock
from asyncrl.envs.sandbox.backends.unconfined import Unconfined
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import (
    LENGTH_BYTES,
    REPLIES,
    REQUESTS,
    BackendName,
    Broken,
    Finished,
    Ready,
    Reason,
    Reply,
    Start,
    Stop,
    Unusable,
    framed,
    length_of,
)
from asyncrl.envs.sandbox.processes import adopt_orphans, kill_below, kill_orphans_except

BACKENDS: tuple[Backend, ...] = (Sandlock(), Bubblewrap(), Unconfined())
OVERDUE_S = 10.0
"""Seconds after its deadline that a run has to end and to report."""
_TRIED = Limits(wall_s=20.0, cpu_s=10.0)
_CHUNK = 1 << 20


class Frames:
    """Bytes that arrive in pieces, cut into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, piece: bytes) -> list[bytes]:
        """The messages that ``piece`` completes."""
        self._bytes += piece
        complete = []
        while len(self._bytes) >= LENGTH_BYTES and len(self._bytes) >= (end := LENGTH_BYTES + length_of(self._bytes)):
            complete.append(bytes(self._bytes[LENGTH_BYTES:end]))
            del self._bytes[:end]
        return complete


class _Attempt:
    """A run under way: its process, the pipe from which its report is read, and when it is overdue."""

    def __init__(self, request: Start, backend: Backend) -> None:
        self.run = request.run
        self.overdue_at = time.monotonic() + request.limits.wall_s + OVERDUE_S
        self.reading, writing = os.pipe()
        self.report = bytearray()
        supervisor = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _attempt_and_exit(request, backend, writing, supervisor)
        os.close(writing)

    def reply(self) -> Reply:
        """The report of the process, which has closed its end of the pipe."""
        os.close(self.reading)
        _, status = os.waitpid(self.pid, 0)
        messages = Frames().add(bytes(self.report))
        if messages:
            return REPLIES.decode(messages[0])
        return Broken(self.run, f"the process that watched the run ended with {os.waitstatus_to_exitcode(status)}")


class Supervisor:
    """Runs commands by one backend, and reports to one client."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._attempts: dict[int, _Attempt] = {}
        self._frames = Frames()

    def serve(self) -> None:
        """Serve until the client closes its end."""
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            connected = True
            while connected or self._attempts:
                for key, _ in selector.select(self._seconds_to_overdue()):
                    if key.fd == 0:
                        started, connected = self._read_requests()
                        for each in started:
                            selector.register(each.reading, selectors.EVENT_READ, each)
                        if not connected:
                            selector.unregister(0)
                            self._stop_all()
                    elif self._ended(key.data):
                        selector.unregister(key.fd)
                        _send(self._reply_of(key.data))
                self._kill_overdue()

    def _read_requests(self) -> tuple[list[_Attempt], bool]:
        """The runs that what has arrived begins, and whether the client is still there."""
        piece = os.read(0, _CHUNK)
        begun: list[_Attempt] = []
        for message in self._frames.add(piece):
            request = REQUESTS.decode(message)
            if isinstance(request, Start):
                each = self._attempts[request.run] = _Attempt(request, self._backend)
                begun.append(each)
            elif isinstance(request, Stop) and request.run in self._attempts:
                os.kill(self._attempts[request.run].pid, signal.SIGTERM)
        return begun, bool(piece)

    def _ended(self, each: _Attempt) -> bool:
        piece = os.read(each.reading, _CHUNK)
        each.report += piece
        return not piece

    def _reply_of(self, each: _Attempt) -> Reply:
        reply = each.reply()
        del self._attempts[each.run]
        if isinstance(reply, Broken):  # it may have been killed before it could clean up
            kill_orphans_except({other.pid for other in self._attempts.values()})
        return reply

    def _stop_all(self) -> None:
        for each in self._attempts.values():
            os.kill(each.pid, signal.SIGTERM)

    def _seconds_to_overdue(self) -> float | None:
        if not self._attempts:
            return None
        return max(0.0, min(each.overdue_at for each in self._attempts.values()) - time.monotonic())

    def _kill_overdue(self) -> None:
        """Kill the processes that have not reported in time; their pipes close, which counts as a report.

        What the run has started goes first: a process that gets no processor because of it could not even end.
        """
        for each in self._attempts.values():
            if time.monotonic() > each.overdue_at:
                kill_below(each.pid)
                os.kill(each.pid, signal.SIGKILL)
                each.overdue_at += OVERDUE_S


def choose(names: Sequence[BackendName]) -> tuple[Backend | None, tuple[str, ...]]:
    """The first of these backends that runs a command here, and what is missing for those before it."""
    missing: list[str] = []
    for name in names:
        backend = next(each for each in BACKENDS if each.name is name)
        why = backend.missing() or _failure(backend)
        if why is None:
            return backend, tuple(missing)
        missing.append(f"{name.value}: {why}")
    return None, tuple(missing)


def _failure(backend: Backend) -> str | None:
    """Say why a command that does nothing fails in the sandbox; None if it does not."""
    with tempfile.TemporaryDirectory(prefix="asyncrl-sandbox-") as folder:
        tried = _Attempt(Start(0, ("/bin/sh", "-c", "exit 0"), folder, (), b"", _TRIED), backend)
        while piece := os.read(tried.reading, _CHUNK):
            tried.report += piece
        reply = tried.reply()
    if isinstance(reply, Finished):
        if reply.exit_code == 0:
            return None
        printed = reply.stderr.decode(errors="replace").strip()
        ended = f"exit status {reply.exit_code}" if reply.reason is Reason.EXITED else f"limit of {reply.reason}"
        return f"a command that does nothing ended with {ended}: {printed}"
    return reply.problem if isinstance(reply, Broken) else "no report"


def _attempt_and_exit(request: Start, backend: Backend, writing: int, supervisor: int) -> None:
    """Be the process of one run. Nothing of the supervisor's may stay open in it, and it must never return."""
    started: list[Running] = []
    try:
        kept = os.dup2(writing, 3, inheritable=False) if writing != 3 else writing
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        report = framed(attempt(request, backend, started, supervisor))
        with os.fdopen(kept, "wb") as file:
            file.write(report)
        os._exit(0)
    finally:
        os._exit(1)


def _send(reply: Reply) -> None:
    """Write a reply to the client. If the client is gone, its closed end of the other pipe is noticed next."""
    unsent = memoryview(framed(reply))
    try:
        while unsent:
            unsent = unsent[os.write(1, unsent) :]
    except BrokenPipeError:
        return


def main(arguments: Sequence[str]) -> None:
    """Choose a backend, say which, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the client decides when to end
    adopt_orphans()
    gc.disable()
    gc.freeze()
    backend, missing = choose([BackendName(each) for each in arguments])
    if backend is None:
        _send(Unusable(missing))
        return
    _send(Ready(backend.name, missing))
    Supervisor(backend).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
