"""Where the output of an actor and of all its child processes goes."""

import logging
import os
import sys
from pathlib import Path


def route_output(log_file: Path) -> None:
    """Send this process's standard output and error, its children's, and its logging into one file.

    File descriptors are replaced, not only ``sys.stdout``, because engines write from processes and libraries of their own.
    """
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    # ``exit()`` closes it. Whatever is opened next must not become the standard input of this process's children.
    sys.stdin = open(os.devnull)  # noqa: SIM115 - for as long as the process lives
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
