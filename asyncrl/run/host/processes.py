"""Ends every process of a run with it.

The driver adopts orphans (a Linux "child subreaper"), so that whatever an actor started stays among the driver's descendants even
after the actor is gone, and can be found and ended at the end of the run.
"""

import contextlib
import os
import signal
from pathlib import Path

import psutil


def end_descendants(seconds: float, spared: str = "") -> list[str]:
    """Terminate every descendant, and kill those that are still there after ``seconds``; returns the names of those killed.

    Those that do not take SIGTERM are killed at once: see :mod:`asyncrl.run.host.signals`. They have nothing to save. Python's
    resource trackers take none either, but remove the named semaphores of processes that were killed: they are left alone, and
    end when these have.
    """
    everything = [process for process in psutil.Process().children(recursive=True) if not _belongs_to(process, spared)]
    trackers = [process for process in everything if _tracks_resources(process)]
    descendants = [process for process in everything if process not in trackers]
    for process in descendants:
        _signal(process, signal.SIGTERM if _takes_sigterm(process) else signal.SIGKILL)
    _, stubborn = psutil.wait_procs(descendants, timeout=seconds)
    names = [f"{_name(process)} ({process.pid})" for process in stubborn]
    for process in stubborn:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs([*stubborn, *trackers], timeout=1.0)
    for process in trackers:
        _signal(process, signal.SIGKILL)
    return names


def kill_everything(exit_code: int) -> None:
    """Kill all descendants and leave at once, without cleaning up."""
    for process in psutil.Process().children(recursive=True):
        _signal(process, signal.SIGKILL)
    os._exit(exit_code)


def _takes_sigterm(process: psutil.Process) -> bool:
    """Whether ``process`` neither blocks nor ignores SIGTERM; true if the system does not say."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return True
    masks = {name: int(mask, 16) for name, _, mask in (line.partition(":") for line in lines) if name in ("SigBlk", "SigIgn")}
    return not any(mask & 1 << (signal.SIGTERM - 1) for mask in masks.values())


def _tracks_resources(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _belongs_to(process: psutil.Process, name: str) -> bool:
    """Whether ``process``, or one that it descends from, has this name."""
    try:
        return bool(name) and name in {_name(each) for each in (process, *process.parents())}
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return "ended"
