"""A command as an ordinary child process."""

import os
import subprocess
from collections.abc import Callable, Sequence

from asyncrl.envs.sandbox.backends.backend import shell_status


class Spawned:
    """A child process with the caller's standard streams, and with no other file of the caller's open but ``passed``."""

    def __init__(
        self,
        command: Sequence[str],
        prepare: Callable[[], None],
        folder: str | None = None,
        environment: dict[str, str] | None = None,
        passed: tuple[int, ...] = (),
    ) -> None:
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, preexec_fn=prepare, pass_fds=passed, process_group=0
        )
        self.pid = self._process.pid

    def exit_status(self) -> int:
        """The exit status as a shell tells it."""
        return shell_status(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))
