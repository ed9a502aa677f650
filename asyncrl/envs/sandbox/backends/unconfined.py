"""No confinement: the recipe says that the commands may be trusted. Time, output and sizes are still limited."""

import os
import signal

from asyncrl.envs.sandbox.backends.backend import environment_of
from asyncrl.envs.sandbox.backends.spawned import Spawned
from asyncrl.envs.sandbox.messages import BackendName, Start
from asyncrl.envs.sandbox.privileges import limit_command
from asyncrl.envs.sandbox.processes import end_with_parent


class Unconfined:
    """Runs the command as a process like any other, without the caller's environment variables, files and capabilities."""

    name = BackendName.NONE
    needs_capabilities = False
    own_processes = 0

    def missing(self) -> str | None:
        """Nothing is missing."""
        return None

    def start(self, request: Start) -> Spawned:
        """Start the command in its folder. Its first process ends with the caller, however that ends."""
        caller = os.getpid()

        def prepare() -> None:
            limit_command(request.limits)
            end_with_parent(caller, signal.SIGKILL)

        return Spawned(request.command, prepare, request.folder, environment_of(request.folder))
