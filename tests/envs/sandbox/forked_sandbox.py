"""A sandbox in a process of its own, which may be an ordinary user's: the kernel protects root's processes better."""

import asyncio
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import Choice, Finished
from asyncrl.envs.sandbox.privileges import drop_capabilities
from asyncrl.envs.sandbox.sandbox import Sandbox

PYTHON = os.path.realpath(sys.executable)
DEADLINE_S = 120.0


class ForkedSandbox:
    """A process that uses a sandbox, one run after the other.

    Args:
        ordinary_user: whether the process gives up root's powers first.

    Attributes:
        pid: the process.

    Raises:
        RecipeError: there is no such sandbox here.
    """

    def __init__(self, choice: Choice, ordinary_user: bool = False) -> None:
        forked = multiprocessing.get_context("fork")
        self._requests, others_end = forked.Pipe()
        self._process = forked.Process(target=_serve, args=(others_end, choice, ordinary_user))
        self._process.start()
        others_end.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        problem = self._answer()
        if problem is not None:
            self._process.join()
            raise RecipeError("", str(problem), "")

    def run(self, code: str, folder: Path, limits: Limits) -> Finished:
        """Run a Python program."""
        self._requests.send((code, folder, limits))
        finished = self._answer()
        assert isinstance(finished, Finished), finished
        return finished

    def close(self) -> None:
        """End the sandbox and the process."""
        self._requests.send(None)
        self._process.join(DEADLINE_S)
        self._process.kill()

    def _answer(self) -> object:
        assert self._requests.poll(DEADLINE_S), f"no answer within {DEADLINE_S:g} s"
        return self._requests.recv()


def _serve(requests: Connection, choice: Choice, ordinary_user: bool) -> None:
    if ordinary_user:
        drop_capabilities()
    with asyncio.Runner() as runner:
        try:
            sandbox = runner.run(Sandbox(choice).__aenter__())  # type: ignore[arg-type]
        except RecipeError as error:
            requests.send(error.problem)
            return
        requests.send(None)
        while (request := requests.recv()) is not None:
            code, folder, limits = request
            command = [PYTHON, "-I", "-S", "-"]
            running = sandbox.run(command, folder, limits, stdin=code.encode(), readable=[Path(sys.base_prefix)])
            requests.send(runner.run(running))
        runner.run(sandbox.__aexit__(None, None, None))
