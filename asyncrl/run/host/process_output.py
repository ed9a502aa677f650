"""Sends the output of an actor and of all its child processes to a log file."""

import logging
import os
import sys
from pathlib import Path

from asyncrl.core.process.log_format import log_to
from asyncrl.core.process.standard_streams import logged_stream, standard_stream
from asyncrl.run.host.bounded_log import BoundedLog


def route_output(log_file: Path) -> None:
    """Send this process's standard output and error, its children's, and its logging into one file.

    On a node that does not see the run folder, the file lies in one of the same name there; see
    :mod:`asyncrl.run.nodes.remote_files`.

    File descriptors are replaced, not only ``sys.stdout``, because engines write from processes and libraries of their own.
    """
    begin = os.O_TRUNC if _is_far(log_file.parent) else 0  # what is there was brought to the run folder when the run ran before
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | begin, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    # ``exit()`` closes standard input, and the user's code may close the others. None of the three descriptors may become free:
    # the next file or connection would take its number, and be the standard output of this process's children.
    sys.stdin = open(os.devnull)  # noqa: SIM115 - it lives as long as the process
    sys.stdout, sys.stderr = logged_stream(1), logged_stream(2)
    log_to(logging.StreamHandler(standard_stream(2)))
    BoundedLog(log_file).watch()


def _is_far(logs: Path) -> bool:
    """Whether ``logs`` is not the run's own folder of logs but one of the same name on another node, made here or before."""
    far = logs / ".far"
    if not logs.is_dir():
        logs.mkdir(parents=True, exist_ok=True)
        far.touch()
    return far.exists()
