"""Tells an engine's process what became of work that its workers on the same node do in threads, beside sampling.

vLLM's engine process asks its workers one thing after another, and waits for each answer before it lets them compute the next
step. What takes longer is therefore only begun in such a call; each worker tells the end of it through a named pipe. What always
holds: a worker that dies before it has answered is noticed, because the kernel closes its end of the pipe.
"""

import os
from tempfile import TemporaryDirectory

import msgspec

from asyncrl.core.errors import ComponentFailed

_LONGEST = 600
"""Characters of an answer. Encoded, they are fewer bytes than the kernel writes into a pipe at once."""


class Answers:
    """The engine's end: waits for one answer of each worker.

    Attributes:
        path: where each worker makes an :class:`Answer`, before :meth:`wait` is called.
    """

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="asyncrl-answers-")
        self.path = os.path.join(self._folder.name, "pipe")
        os.mkfifo(self.path, 0o600)
        self._reading = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def wait(self, workers: int) -> None:
        """Wait until all ``workers`` have answered.

        Raises:
            ComponentFailed: a worker answered that it failed, or died.
        """
        os.set_blocking(self._reading, True)
        with os.fdopen(self._reading, "rb") as pipe:
            answers = [msgspec.json.decode(line, type=str) for line in pipe]
        if problem := next(filter(None, answers), ""):
            raise ComponentFailed(problem)
        if len(answers) != workers:
            raise ComponentFailed(
                f"{workers - len(answers)} of the engine's {workers} workers ended before they answered; see its log"
            )

    def close(self) -> None:
        """Remove the pipe's name. Workers that have made their answers can still give them."""
        self._folder.cleanup()


class Answer:
    """A worker's end; gives one answer.

    Args:
        path: :attr:`Answers.path`.
    """

    def __init__(self, path: str) -> None:
        self._writing = os.open(path, os.O_WRONLY)

    def give(self, problem: str = "") -> None:
        """Tell that the work is done, or what the problem was."""
        try:
            os.write(self._writing, msgspec.json.encode(problem[:_LONGEST]) + b"\n")
        finally:
            os.close(self._writing)
