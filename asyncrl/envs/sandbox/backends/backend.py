"""The contract of a backend, and what all backends show a command of the system."""

import os
from typing import Protocol

from asyncrl.envs.sandbox.messages import BackendName, Start

SYSTEM_FOLDERS = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc/alternatives")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime")
FILES_FOR_AGENTS = (
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts", "/etc/mime.types"),
    *("/etc/ssl/openssl.cnf", "/etc/ssl/certs", "/etc/ca-certificates.conf", "/etc/pki/tls/certs", "/etc/gitattributes"),
)
"""Files that hold no secrets, and that runtimes of programs ask for: names of users and hosts, certificates."""
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
    """

    name: BackendName
    needs_capabilities: bool

    def missing(self) -> str | None:
        """Say what is missing here, with the remedy; None if the backend can be used."""

    def own_processes(self, request: Start) -> int:
        """Count the backend's own processes around the command, which the limit of processes allows beside it."""

    def start(self, request: Start) -> Running:
        """Start the command with the caller's standard streams. The caller watches it and kills what is left of it."""


def environment_of(request: Start) -> dict[str, str]:
    """All environment variables that a command sees."""
    if request.agent:
        return request.agent.variables
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": request.folder,
        "TMPDIR": request.folder,
        "LANG": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def current_folder(request: Start) -> str:
    """Return the folder in which a command begins."""
    return request.agent.current_folder if request.agent else request.folder


def readable_paths(request: Start) -> list[str]:
    """Return the system's folders and files that exist, and the folders that the request names."""
    system = (*SYSTEM_FOLDERS, *SYSTEM_FILES, *(FILES_FOR_AGENTS if request.agent else ()))
    return [path for path in (*system, *request.readable) if os.path.exists(path)]


def shell_status(code: int) -> int:
    """The exit status as a shell tells it: 128 and the signal's number for minus the signal's number."""
    return code if code >= 0 else 128 - code
