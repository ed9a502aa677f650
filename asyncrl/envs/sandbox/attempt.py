"""One run, in a process of its own: starts the command confined, watches it, and leaves nothing of it behind.

What always holds: the process reports once how the run ended, and when it has reported, no process of the run is left.
"""

import math
import os
import selectors
import signal
import time

from asyncrl.core.files.folder_tree import sizes_below
from asyncrl.envs.sandbox.backends.backend import Backend, Running
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import Broken, Finished, Reason, Reply, Start
from asyncrl.envs.sandbox.privileges import MIB, drop_capabilities, limit_this_process
from asyncrl.envs.sandbox.processes import adopt_orphans, end_with_parent, kill_descendants, unlinked_bytes, usage

_LOOK_EVERY_S, _LOOK_AT_AGENTS_EVERY_S = 0.02, 0.2
"""Seconds between two looks at what the command uses. There may be hundreds of agents, each for minutes."""
_MEASURE_FOLDER_EVERY = 5
"""Looks between two measurements of the folder."""
_FILE_COSTS = 4096
_CHUNK = 1 << 16


class _Stopped(Exception):
    """The supervisor says that nobody waits for the run any more."""


def attempt(request: Start, backend: Backend, started: list[Running], supervisor: int) -> Reply:
    """Run the command of ``request``. The caller is a fresh child of the supervisor, and has nothing else to do.

    Args:
        supervisor: the supervisor's process.
        started: takes the command, which the caller must keep until its process ends: to free it may mean to wait for it.
    """
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _stop)
    os.setsid()
    adopt_orphans()
    end_with_parent(supervisor, signal.SIGTERM)
    outputs = _Outputs(request.limits.output_kb * 1024)
    try:
        try:
            status, reason = _run(request, backend, outputs, began, started)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            kill_descendants()
    except _Stopped:
        status, reason = None, Reason.STOPPED
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the sandbox that failed
        return Broken(request.run, f"{type(error).__name__}: {error}")
    outputs.drain()
    seconds = time.monotonic() - began
    return Finished(request.run, bytes(outputs.kept[0]), bytes(outputs.kept[1]), status, reason, seconds)


def _run(
    request: Start, backend: Backend, outputs: "_Outputs", began: float, started: list[Running]
) -> tuple[int | None, Reason]:
    limit_this_process(request.limits)
    if not backend.needs_capabilities:
        drop_capabilities()
    _standard_input(request.stdin)
    with outputs.as_standard_streams():
        running = backend.start(request)
    started.append(running)
    allowed_processes = request.limits.processes + backend.own_processes(request)
    reason = _watch(running, request, allowed_processes, outputs, began + request.limits.wall_s)
    if reason is Reason.EXITED and folder_is_full(request.folder, request.limits):
        reason = Reason.FOLDER
    return (running.exit_status(), reason) if reason is Reason.EXITED else (None, reason)


def _watch(running: Running, request: Start, allowed_processes: int, outputs: "_Outputs", until: float) -> Reason:
    """Wait until the command's first process has ended or a limit is crossed, and say which."""
    looks, every_s = 0, _LOOK_AT_AGENTS_EVERY_S if request.agent else _LOOK_EVERY_S
    ended = os.pidfd_open(running.pid)
    with selectors.DefaultSelector() as selector:
        selector.register(ended, selectors.EVENT_READ)
        for stream in outputs.reading:
            selector.register(stream, selectors.EVENT_READ)
        next_look = time.monotonic() + every_s
        while True:
            for key, _ in selector.select(max(0.0, min(next_look, until) - time.monotonic())):
                if key.fd == ended:  # when its time was over, the supervisor may have killed it in our place
                    return Reason.EXITED if time.monotonic() < until else Reason.WALL_TIME
                if not outputs.read(key.fd):
                    selector.unregister(key.fd)
            if outputs.overflowed:
                return Reason.OUTPUT
            now = time.monotonic()
            if now >= until:
                return Reason.WALL_TIME
            if now >= next_look:
                measured = looks % _MEASURE_FOLDER_EVERY == _MEASURE_FOLDER_EVERY - 1
                crossed = _crossed(request, allowed_processes, measured, until)
                if crossed is not None:
                    return crossed
                looks += 1
                next_look = time.monotonic() + every_s


def _crossed(request: Start, allowed_processes: int, folder_too: bool, until: float) -> Reason | None:
    limits, used = request.limits, usage(os.getpid(), allowed_processes + 1)
    if used.threads > allowed_processes:
        return Reason.PROCESSES
    if used.cpu_s > limits.cpu_s:
        return Reason.CPU_TIME
    if used.memory_bytes > limits.memory_mb * MIB:
        return Reason.MEMORY
    if folder_too and folder_is_full(request.folder, limits, unlinked_bytes(os.getpid(), allowed_processes), until):
        return Reason.FOLDER
    return None


def folder_is_full(folder: str, limits: Limits, used: int = 0, until: float = math.inf) -> bool:
    """Whether the files below ``folder`` and ``used`` bytes are more than ``folder_mb``.

    Stops counting as soon as they are, or when it is ``until`` on the monotonic clock: there may be millions of small ones.
    """
    allowed = limits.folder_mb * MIB
    if used > allowed:
        return True
    for size in sizes_below(folder):
        used += _FILE_COSTS + size
        if used > allowed:
            return True
        if time.monotonic() >= until:
            break
    return False


def _standard_input(content: bytes) -> None:
    """Make a file with ``content`` the standard input. It has no name, and is open for reading only."""
    with os.fdopen(os.memfd_create("stdin"), "wb") as file:
        file.write(content)
        file.flush()
        source = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY)
    os.dup2(source, 0)
    os.close(source)


def _stop(*_: object) -> None:
    raise _Stopped


class _Outputs:
    """Standard output and error of the command: pipes, and what has been read of them, up to a limit each.

    Attributes:
        reading: the pipes' ends to read from.
        overflowed: whether the command printed more than the limit.
    """

    def __init__(self, limit: int) -> None:
        pipes = [os.pipe(), os.pipe()]
        self.reading = tuple(reading for reading, _ in pipes)
        self.kept = (bytearray(), bytearray())
        self.overflowed = False
        self._writing = tuple(writing for _, writing in pipes)
        self._limit = limit
        for stream in self.reading:
            os.set_blocking(stream, False)

    def as_standard_streams(self) -> "_StandardStreams":
        """The pipes as standard output and error of this process, for as long as the command is being started."""
        return _StandardStreams(self._writing)

    def read(self, stream: int) -> bool:
        """Keep what there is to read, up to the limit; return whether more may come."""
        chunk = self._take(stream)
        return chunk is None or bool(chunk)

    def drain(self) -> None:
        """Read what is left in the pipes, now that nobody writes any more."""
        for stream in self.reading:
            while self._take(stream):
                pass

    def _take(self, stream: int) -> bytes | None:
        """Read what there is: nothing at the end, and None if nobody has written anything yet."""
        try:
            chunk = os.read(stream, _CHUNK)
        except BlockingIOError:
            return None
        kept = self.kept[self.reading.index(stream)]
        room = self._limit - len(kept)
        kept += chunk[:room]
        self.overflowed |= len(chunk) > room
        return chunk


class _StandardStreams:
    """Puts the ends to write to in the place of standard output and error, and closes them afterwards."""

    def __init__(self, writing: tuple[int, ...]) -> None:
        self._writing = writing

    def __enter__(self) -> None:
        for target, stream in zip((1, 2), self._writing, strict=True):
            os.dup2(stream, target)

    def __exit__(self, *_: object) -> None:
        nothing = os.open(os.devnull, os.O_WRONLY)
        for target, stream in zip((1, 2), self._writing, strict=True):
            os.dup2(nothing, target)
            os.close(stream)
        os.close(nothing)
