"""Confinement by Landlock and seccomp, through the ``sandlock`` package: no root, no daemon, no container."""

import os
from importlib.util import find_spec
from typing import Any

from asyncrl.envs.sandbox.backends.backend import DEVICES, current_folder, environment_of, readable_paths, shell_status
from asyncrl.envs.sandbox.messages import BackendName, Start
from asyncrl.envs.sandbox.privileges import MIB, OPEN_FILES, OPEN_FILES_OF_AGENTS
from asyncrl.envs.sandbox.seccomp import (
    OF_OPEN_FILES,
    OF_OTHERS,
    ONLY_LOCAL_SOCKETS,
    RESERVED_ROOM,
    SOCKETS_FOR_TCP,
    WATCHES,
    install,
    unsupported,
)

LOOPBACK = "127.0.0.1"
DENIED_CALLS = ("memfd_create", "memfd_secret")
"""Besides sandlock's own list: memory that no limit counts."""


class Confined:
    """A command that sandlock has started."""

    def __init__(self, process: Any) -> None:
        self._process, self.pid = process, int(process.pid)

    def exit_status(self) -> int:
        """The exit status as a shell tells it.

        The kernel is asked for it. Sandlock would wait until its threads have served the last call of the command's other
        processes, and a call that opens a named pipe may take for ever.
        """
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        return shell_status(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)


class Sandlock:
    """Runs the command under a Landlock ruleset and a seccomp filter that sandlock's threads in the caller serve."""

    name = BackendName.SANDLOCK
    needs_capabilities = False

    def missing(self) -> str | None:
        """The package or the kernel's Landlock, if either is missing or too old."""
        if (why := unsupported()) is not None:
            return why
        if find_spec("sandlock") is None:
            return "the package sandlock is not installed (pip install 'asyncrl[sandbox]')"
        import sandlock

        has, needed = sandlock.landlock_abi_version(), sandlock.min_landlock_abi()
        if has < needed:
            have = f"offers version {has}" if has > 0 else "does not offer it"
            return f"sandlock needs version {needed} of the kernel's Landlock interface, and this kernel {have} (Linux 6.12 does)"
        return None

    def own_processes(self, request: Start) -> int:
        """There are none."""
        return 0

    def start(self, request: Start) -> Confined:
        """Start the command; what it may do is fixed before its first instruction."""
        import sandlock

        agent = request.agent
        install(OF_OTHERS | OF_OPEN_FILES | (SOCKETS_FOR_TCP if agent else ONLY_LOCAL_SOCKETS) | WATCHES | RESERVED_ROOM)
        policy = sandlock.Sandbox(
            fs_readable=[*readable_paths(request), *DEVICES],
            fs_writable=[request.folder, "/dev/null"],
            chroot="/",  # so that sandlock sees each path: Landlock alone lets a program change modes and times anywhere
            net_allow=[f"tcp://{LOOPBACK}:{agent.port}"] if agent else [],
            cwd=current_folder(request),
            clean_env=True,
            env=environment_of(request),
            max_memory=None if agent else request.limits.memory_mb * MIB,
            max_processes=request.limits.processes,
            max_open_files=OPEN_FILES_OF_AGENTS if agent else OPEN_FILES,
            extra_deny_syscalls=DENIED_CALLS,
            name=f"run-{os.getpid()}",
        )
        return Confined(policy.popen(list(request.command)))
