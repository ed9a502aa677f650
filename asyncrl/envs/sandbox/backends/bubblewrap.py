"""Confinement by namespaces and a seccomp filter, through the program ``bwrap`` of the package bubblewrap."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from asyncrl.envs.sandbox import forwarder
from asyncrl.envs.sandbox.backends.backend import current_folder, environment_of, readable_paths
from asyncrl.envs.sandbox.backends.spawned import Spawned
from asyncrl.envs.sandbox.messages import BackendName, Start
from asyncrl.envs.sandbox.privileges import limit_command
from asyncrl.envs.sandbox.python_programs import python_folders
from asyncrl.envs.sandbox.seccomp import BEYOND_NAMESPACES, program, unsupported

PROGRAM = "bwrap"
_PROBE_S = 10.0
_NAMESPACES = ("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
_FORWARDER = str(Path(forwarder.__file__).resolve())
_OWN_PROC = ("--proc", "/proc", "--remount-ro", "/proc")
"""What many programs ask for, such as where they are themselves. It shows the processes of the sandbox alone. It is read-only, as
the kernel's settings in it are the host's, and root's processes may write them without any capability."""


class Bubblewrap:
    """Runs the command in namespaces of its own, where there are the system's programs, its folder, and nothing else."""

    name = BackendName.BUBBLEWRAP
    needs_capabilities = True

    def __init__(self) -> None:
        self._proc: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """The program, or the kernel's permission to make namespaces."""
        if shutil.which(PROGRAM) is None:
            return f"the program {PROGRAM} is not installed (apt-get install bubblewrap)"
        if (why := unsupported()) is not None:
            return why
        if (why := _problem(())) is not None:
            return f"{PROGRAM} cannot make namespaces here: {why} (user namespaces must be allowed)"
        self._proc = () if _problem(_OWN_PROC) else _OWN_PROC  # containers may forbid it
        return None

    def own_processes(self, request: Start) -> int:
        """Two around each command, and the forwarder of an agent."""
        return 3 if request.agent else 2

    def start(self, request: Start) -> Spawned:
        """Start the command as the second process of a process namespace, whose first ends with the caller."""
        arguments = [*_NAMESPACES, "--clearenv", "--dev", "/dev", "--remount-ro", "/dev"]
        for name, value in environment_of(request).items():
            arguments += ["--setenv", name, value]
        command: tuple[str, ...] = request.command
        readable = readable_paths(request)
        if request.agent:
            temporary = f"{request.folder}/tmp"
            os.makedirs(temporary, exist_ok=True)
            arguments += [*self._proc, "--bind", temporary, "/tmp"]
            readable += [*map(str, python_folders(packages=False)), _FORWARDER, request.agent.socket]
            python = os.path.realpath(sys.executable)
            command = (python, "-I", "-S", _FORWARDER, request.agent.socket, str(request.agent.port), *command)
        for path in _outermost(readable):
            arguments += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
        arguments += ["--bind", request.folder, request.folder, "--remount-ro", "/", "--chdir", current_folder(request)]
        filtered, told = _file("filter", program(BEYOND_NAMESPACES)), _file("arguments", "\0".join(arguments).encode())
        try:  # others can read what stands in a command line
            given = [PROGRAM, "--args", str(told), "--seccomp", str(filtered), "--", *command]
            return Spawned(given, lambda: limit_command(request), passed=(filtered, told))
        finally:
            os.close(filtered)
            os.close(told)


def _outermost(paths: Sequence[str]) -> Iterator[str]:
    """Yield the paths that are not in a folder among them or a link to one: what is there already cannot be put there again."""
    folders = {path for path in paths if os.path.isdir(path)}
    for path in dict.fromkeys(paths):
        if folders.isdisjoint(map(str, Path(path).parents)):
            yield path


def _problem(more: Sequence[str]) -> str | None:
    """Say why namespaces with ``more`` cannot be made; None if they can."""
    command = [PROGRAM, *_NAMESPACES, "--ro-bind", "/", "/", "--dev", "/dev", *more, "true"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S, check=False)
    return tried.stderr.strip() if tried.returncode else None


def _file(name: str, content: bytes) -> int:
    """Return a file without a place in any folder that has this content, to be read from its beginning."""
    file = os.memfd_create(name)
    os.write(file, content)
    os.lseek(file, 0, os.SEEK_SET)
    return file
