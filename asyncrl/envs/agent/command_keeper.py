"""Runs an agent's command in a process of its own, and leaves nothing of it behind.

What always holds: when this process has ended, so have all that the command started, daemons among them. It ends with its parent,
and when it is sent SIGTERM.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from asyncrl.envs.sandbox.processes import adopt_orphans, end_with_parent, kill_descendants

NOT_FOUND = 127
"""Exit status if there is no such command, as a shell has it."""


def main(arguments: Sequence[str]) -> int:
    """Run a command; returns its exit status as a shell tells it.

    Args:
        arguments: the id of the parent process, and the command.
    """
    parent, *command = arguments
    adopt_orphans()
    signal.signal(signal.SIGTERM, _end)
    end_with_parent(int(parent), signal.SIGTERM)
    try:
        status = subprocess.Popen(command, process_group=0).wait()
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        return NOT_FOUND
    kill_descendants()
    return status if status >= 0 else 128 - status


def _end(number: int, frame: FrameType | None) -> None:
    kill_descendants()
    os._exit(128 + number)
