"""Shows pages on a terminal, one at a time, and moves between and within them by single keys."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderableType
from rich.control import Control
from rich.segment import Segment
from rich.text import Text

_KEYS = {
    b"n": "next",
    b"\x1b[C": "next",
    b"p": "previous",
    b"\x1b[D": "previous",
    b"j": "down",
    b"\x1b[B": "down",
    b"k": "up",
    b"\x1b[A": "up",
    b" ": "page down",
    b"\x1b[6~": "page down",
    b"b": "page up",
    b"\x1b[5~": "page up",
    b"q": "quit",
    b"\x04": "quit",
    b"": "quit",
}
"""What each key does; the sequences are those of arrows and page keys. No byte at all means that the terminal is gone."""

_HELP = "n next  p previous  up/down/space scroll  q quit"


class Place:
    """Which page is shown, and from which of its lines on. It never leaves the pages there are."""

    def __init__(self, pages: int) -> None:
        self._last = pages - 1
        self.page = self.top = 0

    def move(self, action: str, lines: int, height: int) -> None:
        """Do what a key asks for, on a page of ``lines`` lines of which ``height`` are visible."""
        match action:
            case "next" | "previous":
                page = min(max(self.page + (1 if action == "next" else -1), 0), self._last)
                self.top = self.top if page == self.page else 0
                self.page = page
            case "down" | "up" | "page down" | "page up":
                by = {"down": 1, "up": -1, "page down": height - 1, "page up": 1 - height}[action]
                self.top = min(max(self.top + by, 0), max(lines - height, 0))


def actions_of(keys: bytes) -> list[str]:
    """Return what the keys ask for that were pressed since the terminal was read last; unknown ones ask for nothing."""
    single = [keys] if keys in _KEYS or keys.startswith(b"\x1b") else [bytes([key]) for key in keys]
    return [_KEYS[key] for key in single if key in _KEYS]


def is_interactive(console: Console) -> bool:
    """Whether pages can be shown one at a time: somebody reads, and can press keys."""
    return console.is_interactive and sys.stdin is not None and sys.stdin.isatty()


def show_pages(console: Console, pages: int, page: Callable[[int], RenderableType]) -> None:
    """Show the pages until the user quits.

    Args:
        page: makes the page of a number from 0 on.
    """
    place, made = Place(pages), (-1, 0)
    lines: list[list[Segment]] = []
    with console.screen(), _single_keys() as key:
        while True:
            if made != (place.page, console.width):  # a page of a megabyte takes a while
                made = place.page, console.width
                lines = console.render_lines(page(place.page), console.options.update(height=None), pad=False)
            height = console.height - 1
            _draw(console, lines[place.top : place.top + height], f"{place.page + 1} of {pages}  {_HELP}", height)
            for action in actions_of(key()):
                if action == "quit":
                    return
                place.move(action, len(lines), height)


def _draw(console: Console, lines: list[list[Segment]], status: str, height: int) -> None:
    console.control(Control.home(), Control.clear())
    console.print(_Screen(lines, status, height), end="")


class _Screen:
    """Lines that were rendered before, empty lines up to ``height``, and the status in the last line."""

    def __init__(self, lines: list[list[Segment]], status: str, height: int) -> None:
        self._lines, self._status, self._height = lines, status, height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in (*self._lines, *[[]] * (self._height - len(self._lines))):
            yield from line
            yield Segment.line()
        yield from console.render_lines(Text(self._status, "reverse", no_wrap=True, overflow="ellipsis"), options)[0]


@contextmanager
def _single_keys() -> Iterator[Callable[[], bytes]]:
    """Have the terminal give each key at once, without showing it; gives a function that waits for the next."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield lambda: os.read(terminal, 8)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
