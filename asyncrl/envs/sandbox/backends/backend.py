"""The contract of a backend, and what all backends show a command of the system."""

import os
from typing import Protocol

from asyncrl.envs.sandbox.messages import BackendName, Start

SYSTEM_FOLDERS = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc/alternatives")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class Running(Protocol):
    """A command that has been started: its first process, and its exit status once it has ended."""

    pid: int

    def exit_status(self) -> int:
        """The exit status as a shell tells it. Called when the first process has ended."""


class Backend(Protocol):
    """A way to confine a command.

    Attributes:
        needs_capabilities: whether it sets the sandbox up with root's powers, if it has them. The command never has them.
        own_processes: the backend's own processes around the command.
    """

    name: BackendName
    needs_capabilities: bool
    own_processes: int

    def missing(self) -> str | None:
        """Say what is missing here, with the remedy; None if the backend can be used."""

    def start(self, request: Start) -> Running:
        """Start the command with the caller's standard streams. The caller watches it and kills what is left of it."""


def environment_of(folder: str) -> dict[str, str]:
    """All environment variables that a command sees."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": folder,
        "TMPDIR": folder,
        "LANG": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def readable_paths(request: Start) -> list[str]:
    """Return the system's folders and files that exist, and the folders that the request names."""
    return [path for path in (*SYSTEM_FOLDERS, *SYSTEM_FILES, *request.readable) if os.path.exists(path)]


def shell_status(code: int) -> int:
    """The exit status as a shell tells it: 128 and the signal's number for minus the signal's number."""
    return code if code >= 0 else 128 - code
