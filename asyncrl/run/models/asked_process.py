"""A process of its own that answers one request about a model: ``python -P -m MODULE``.

It is asked on its standard input, and answers by the last line of its standard output: libraries print, too. It comes up while
the request is still being made, as importing transformers takes a second or two. What always holds: it has ended when the context
of an :class:`AskedProcess` has.
"""

import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.process.asked_python import last_line
from asyncrl.core.process.long_import import long_import

T = TypeVar("T")


class NoAnswer(Exception):
    """The process failed; the text is the last line that it wrote, and the note all of them."""


class AskedProcess:
    """A process that is coming up, as a context manager.

    Args:
        module: its module, which calls :func:`answer_one`.
        light: whether it does without torch.
    """

    def __init__(self, module: str, *, light: bool) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *(["light"] if light else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the driver, which ends this process
        )

    def __enter__(self) -> "AskedProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, answer: type[T], request: bytes, seconds: float) -> T:
        """Wait for the answer, which is of the type ``answer``. May be called once.

        Raises:
            NoAnswer: the process failed.
            TimeoutError: there was no answer in time.
        """
        try:
            output, errors = self._process.communicate(request, timeout=seconds)
        except subprocess.TimeoutExpired as late:
            raise TimeoutError from late
        lines = errors.decode(errors="replace").strip().splitlines()
        try:
            if not self._process.returncode:
                return last_line(output, answer)
            failed = NoAnswer(lines[-1] if lines else f"exit code {self._process.returncode}")
        except ComponentFailed as error:
            failed = NoAnswer(str(error))
        failed.add_note("\n".join(lines))
        raise failed


def answer_one(answer: Callable[[bytes], bytes]) -> None:
    """Be such a process: read the request, and write what ``answer`` makes of it."""
    if "light" in sys.argv:
        # transformers imports torch where there is one, for models, which takes three seconds.
        sys.modules["torch"] = None  # type: ignore[assignment]
    with long_import():
        import transformers.models.auto  # noqa: F401 - while the request is still being made
    sys.stdout.buffer.write(b"\n" + answer(sys.stdin.buffer.read()))
