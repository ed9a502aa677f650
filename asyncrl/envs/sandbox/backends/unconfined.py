"""No confinement: the recipe says that the commands may be trusted. Time, output and sizes are still limited."""

import os
import signal

from asyncrl.envs.sandbox.backends.backend import current_folder, environment_of
from asyncrl.envs.sandbox.backends.spawned import Spawned
from asyncrl.envs.sandbox.messages import BackendName, Start
from asyncrl.envs.sandbox.privileges import limit_command
from asyncrl.envs.sandbox.processes import end_with_parent


class Unconfined:
    """Runs the command as a process like any other, without the caller's environment variables, files and capabilities."""

    name = BackendName.NONE
    needs_capabilities = False

    def missing(self) -> str | None:
        """Nothing is missing."""
        return None

    def own_processes(self, request: Start) -> int:
        """There are none."""
        return 0

    def start(self, request: Start) -> Spawned:
        """Start the command in its folder. Its first process ends with the caller, however that ends."""
        caller = os.getpid()

        def prepare() -> None:
            limit_command(request)
            end_with_parent(caller, signal.SIGKILL)

        return Spawned(request.command, prepare, current_folder(request), environment_of(request))
