"""The processes below one of ours: listed, measured, and killed to the last one.

What always holds: whoever calls :func:`adopt_orphans` first inherits every orphan of its descendants, so a process that makes
itself a daemon stays below it, and :func:`kill_descendants` finds it. Only the standard library is imported, as other
interpreters than ours load this file.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

_SUBREAPER, _PARENT_DEATH_SIGNAL = 36, 1
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_KILL_WITHIN_S = 5.0
_KILL_PAUSE_S = 0.001


class Usage(NamedTuple):
    """What the descendants of a process use: threads and memory now, and processor time since they began."""

    threads: int
    memory_bytes: int
    cpu_s: float


def adopt_orphans() -> None:
    """Become the parent of every process below the caller whose own parent ends."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(parent: int, by: signal.Signals) -> None:
    """Ask the kernel to send the caller this signal when its ``parent`` ends; it is sent now if that has ended already."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, by, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), by)


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes below ``pid``, parents first. Those that are made meanwhile may be missed."""
    unseen = [pid]
    while unseen:
        for child in _children(unseen.pop()):
            yield child
            unseen.append(child)


def usage(pid: int, at_most: int) -> Usage:
    """Measure the first ``at_most`` processes below ``pid``. Those that they have waited for count in the processor time."""
    threads, pages, ticks = 0, 0, 0
    for each in islice(descendants(pid), at_most):
        try:
            with open(f"/proc/{each}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        # proc(5): state is the third field and the first here; 14 to 17 are ticks, 20 threads, 24 resident pages
        ticks += sum(map(int, fields[11:15]))
        threads += int(fields[17])
        pages += int(fields[21])
    reaped = os.times()
    return Usage(threads, pages * _PAGE, ticks / _TICKS + reaped.children_user + reaped.children_system)


def unlinked_bytes(pid: int, at_most: int) -> int:
    """Bytes of the files without a name that the first ``at_most`` processes below ``pid`` have open."""
    sizes: dict[tuple[int, int], int] = {}
    for each in islice(descendants(pid), at_most):
        with suppress(OSError), os.scandir(f"/proc/{each}/fd") as entries:  # it has ended, or may not be looked at
            for entry in entries:
                file = entry.stat()
                if stat.S_ISREG(file.st_mode) and file.st_nlink == 0:
                    sizes[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(sizes.values())


def kill_descendants() -> None:
    """Kill and reap all processes below the caller, which leads a session of its own.

    The kernel kills a process group at once, so a group cannot outrun it by making processes; what has left its group is found
    in the next round.

    Raises:
        TimeoutError: some are left after 5 seconds.
    """
    until = time.monotonic() + _KILL_WITHIN_S
    while True:
        for each in descendants(os.getpid()):
            _kill(each)
        if not _reap():
            return
        if time.monotonic() > until:
            left = ", ".join(map(str, descendants(os.getpid())))
            problem = f"processes {left} are still there {_KILL_WITHIN_S:g} s after SIGKILL"
            raise TimeoutError(f"{problem}; look what they wait for, such as a file system that does not answer")
        time.sleep(_KILL_PAUSE_S)


def kill_below(pid: int) -> list[int]:
    """Kill all processes below ``pid``, which need not be able to run itself: it may be stopped, or never get a processor.

    Returns:
        Those that are still there after 5 seconds.
    """
    until = time.monotonic() + _KILL_WITHIN_S
    while (living := [each for each in descendants(pid) if _lives(each)]) and time.monotonic() < until:
        for each in living:
            _kill(each)
        time.sleep(_KILL_PAUSE_S)
    return living


def orphans_except(known: set[int]) -> list[int]:
    """The caller's children that are not ``known``: it inherited them."""
    return [child for child in _children(os.getpid()) if child not in known]


def kill_orphans_except(known: set[int]) -> None:
    """Kill the caller's children that are not ``known``, which it inherited, and all processes below them, within 5 seconds."""
    until = time.monotonic() + _KILL_WITHIN_S
    while (orphans := orphans_except(known)) and time.monotonic() < until:  # the children of one become the caller's in turn
        for orphan in orphans:
            for each in (orphan, *descendants(orphan)):
                _kill(each)
            os.waitpid(orphan, os.WNOHANG)  # one that waits for a file system may not end, and others wait for the caller
        time.sleep(_KILL_PAUSE_S)


def _kill(pid: int) -> None:
    """Kill a process with its group, if it is not in the caller's."""
    with suppress(ProcessLookupError):  # it has ended
        group = os.getpgid(pid)
        if group == os.getpgrp():
            os.kill(pid, signal.SIGKILL)
        else:
            os.killpg(group, signal.SIGKILL)


def _lives(pid: int) -> bool:
    """Whether a process has not ended yet; one that has ended stays in the list until its parent has noticed."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _reap() -> bool:
    """Reap children that have ended, and return whether there are others."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def _children(pid: int) -> Iterator[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
