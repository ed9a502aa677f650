"""Confinement by namespaces and a seccomp filter, through the program ``bwrap`` of the package bubblewrap."""

import os
import shutil
import subprocess

from asyncrl.envs.sandbox.backends.backend import environment_of, readable_paths
from asyncrl.envs.sandbox.backends.spawned import Spawned
from asyncrl.envs.sandbox.messages import BackendName, Start
from asyncrl.envs.sandbox.privileges import limit_command
from asyncrl.envs.sandbox.seccomp import BEYOND_NAMESPACES, program, unsupported

PROGRAM = "bwrap"
_PROBE_S = 10.0
_NAMESPACES = ("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL")


class Bubblewrap:
    """Runs the command in namespaces of its own, where there are the system's programs, its folder, and nothing else."""

    name = BackendName.BUBBLEWRAP
    needs_capabilities = True
    own_processes = 2

    def missing(self) -> str | None:
        """The program, or the kernel's permission to make namespaces."""
        found = shutil.which(PROGRAM)
        if found is None:
            return f"the program {PROGRAM} is not installed (apt-get install bubblewrap)"
        if (why := unsupported()) is not None:
            return why
        tried = subprocess.run(
            [found, *_NAMESPACES, "--ro-bind", "/", "/", "--dev", "/dev", "true"],
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        )
        if tried.returncode != 0:
            return f"{PROGRAM} cannot make namespaces here: {tried.stderr.strip()} (user namespaces must be allowed)"
        return None

    def start(self, request: Start) -> Spawned:
        """Start the command as the second process of a process namespace, whose first ends with the caller."""
        arguments = [PROGRAM, *_NAMESPACES, "--clearenv"]
        for name, value in environment_of(request.folder).items():
            arguments += ["--setenv", name, value]
        for path in readable_paths(request):
            if os.path.islink(path):
                arguments += ["--symlink", os.readlink(path), path]
            else:
                arguments += ["--ro-bind", path, path]
        arguments += ["--dev", "/dev", "--remount-ro", "/dev", "--bind", request.folder, request.folder, "--remount-ro", "/"]
        reading, writing = os.pipe()
        os.write(writing, program(BEYOND_NAMESPACES))
        os.close(writing)
        arguments += ["--chdir", request.folder, "--seccomp", str(reading), "--", *request.command]
        try:
            return Spawned(arguments, lambda: limit_command(request.limits), passed=(reading,))
        finally:
            os.close(reading)
