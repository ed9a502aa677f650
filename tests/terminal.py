"""A terminal of a given size that a command runs in, as a person sees it: pyte interprets what the command writes."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyte

DEADLINE_S = 120.0
"""How long a command may take to show what is waited for; generous, because other tests run beside."""


class Terminal:
    """The screen of a command, and its keyboard.

    Attributes:
        process: the command.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", ours: int, columns: int, lines: int) -> None:
        self.process = process
        self._ours, self._ended = ours, os.pidfd_open(process.pid)
        self._screen = pyte.HistoryScreen(columns, lines, history=10_000, ratio=1.0)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def shown(self) -> list[str]:
        """The lines of the screen, without blanks at their ends."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def everything(self) -> list[str]:
        """What has left the screen at its top, and the lines of the screen, without blanks at their ends."""
        gone = ["".join(line[column].data for column in range(self._screen.columns)) for line in self._screen.history.top]
        return [line.rstrip() for line in gone] + self.shown

    def style_of(self, text: str) -> pyte.screens.Char:
        """Return the first cell of ``text``, with its color and weight.

        Raises:
            AssertionError: the screen does not show the text in one line.
        """
        for number, line in enumerate(self._screen.display):
            if (column := line.find(text)) >= 0:
                return self._screen.buffer[number][column]
        raise AssertionError(f"{text!r} is not on the screen:\n" + "\n".join(self.shown))

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    def wait_for(self, seen: str | Callable[[list[str]], bool]) -> list[str]:
        """Wait until the screen shows a text, or fulfils a condition, and return its lines.

        Raises:
            AssertionError: it does not within the deadline, or before the command ends.
        """
        fulfilled = (lambda lines: any(seen in line for line in lines)) if isinstance(seen, str) else seen
        deadline = time.monotonic() + DEADLINE_S
        while not fulfilled(self.shown):
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"the screen never showed {seen!r}, but:\n" + "\n".join(self.everything))
        return self.shown

    def wait(self) -> int:
        """Read what is written until the command ends, and return its exit status."""
        deadline = time.monotonic() + DEADLINE_S
        while self._read(deadline - time.monotonic()):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def close(self) -> None:
        """Give up the terminal."""
        os.close(self._ended)
        os.close(self._ours)

    def _read(self, seconds: float) -> bool:
        """Take what was written; whether there was anything before the time was over or the command had ended."""
        # The terminal itself never ends: it is kept open to see what the command leaves behind.
        ready = select.select([self._ours, self._ended], [], [], max(0.0, seconds))[0]
        if self._ours not in ready:
            return False
        self._stream.feed(os.read(self._ours, 65536))
        return True


@contextmanager
def terminal(
    command: Sequence[str], columns: int, lines: int = 40, environment: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """Run ``python COMMAND`` in a terminal of its own. What is still running at the end is killed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    before = termios.tcgetattr(theirs)
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**inherited, "TERM": "xterm-256color", **(environment or {})},
    )
    shown = Terminal(process, ours, columns, lines)
    try:
        yield shown
        assert termios.tcgetattr(theirs) == before, "the terminal's settings were not restored"
    finally:
        process.kill()
        process.wait()
        shown.close()
        os.close(theirs)
