"""The temporary folder of an engine's processes: sockets, pipes, and what multiprocessing and vLLM would leave in ``TMPDIR``.

What always holds: all of it goes when the folder is closed, which happens at the latest when this process ends; if the process is
killed, it goes when the next worker of the same user starts on this machine (:mod:`asyncrl.envs.hosting.workspaces`).
"""

import atexit
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.network.socket_folder import socket_folder
from asyncrl.core.process.environment_variables import added_to_environment, changed_in_environment
from asyncrl.envs.hosting.workspaces import Workspaces, default_root

_NAME = "e"
"""Short, because the path of a socket has at most 107 bytes, of which its own name takes 36."""
_SOCKET = len("/asyncrl-123456/e-1234567-12345678/") + 36
"""Bytes of the longest path of a socket below the folder for temporary files."""


class EngineFolder:
    """A new folder for the engine of this process.

    Raises:
        ComponentFailed: it cannot be made.
    """

    def __init__(self) -> None:
        try:
            self._folder: Workspaces | None = Workspaces(_NAME, default_root(socket_folder(_SOCKET)))
        except ComponentFailed as error:
            raise ComponentFailed(f"there is no place for the sockets of an engine: {error}") from error
        self.path = str(self._folder.folder)
        atexit.register(self.close)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Have processes that are started in this context keep temporary files here, but not what others look for later."""
        # As torch chooses, but by the user's number: in containers it often has no name.
        cache = os.path.join(tempfile.gettempdir(), f"torchinductor_{os.getuid()}")
        sockets: dict[str, Any] = vars(multiprocessing.current_process())["_config"]
        with added_to_environment({"TORCHINDUCTOR_CACHE_DIR": cache}), changed_in_environment({"TMPDIR": self.path}):
            before = sockets.get("tempdir")
            sockets["tempdir"] = self.path  # multiprocessing would make a folder of its own, and remove it only at an orderly end
            try:
                yield
            finally:
                sockets["tempdir"] = before

    def close(self) -> None:
        """Remove it. Does nothing the second time."""
        if self._folder is not None:
            self._folder.close()
            self._folder = None
            atexit.unregister(self.close)
