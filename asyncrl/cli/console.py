"""Consoles that never end a run: a terminal may lack a character, a pipe may lose its reader, and a file's disk may be full."""

import os
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

from asyncrl.episodes.visible import visible

_WIDTH, _HEIGHT = 80, 25
"""What a terminal has that does not say its size."""


def _in_notebook() -> bool:
    """Whether this is a command of a notebook's cell.

    Jupyter starts its kernels with the first variable. A kernel that another program starts, such as VS Code, has only what
    kernels set themselves: where matplotlib draws, unless that was set before.
    """
    return "JPY_PARENT_PID" in os.environ or "inline" in os.environ.get("MPLBACKEND", "")


class _Harmless(RenderHook):
    """Makes control characters of texts visible where they would reach a terminal; a reader of a pipe gets them as they are."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Visible(each) for each in renderables] if self._console.is_terminal or self._console.stderr else renderables


class _Visible:
    """Something to be shown, with the control characters of its texts made visible."""

    def __init__(self, shown: ConsoleRenderable) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in console.render(self._shown, options):
            yield part if part.control else Segment(visible(part.text), part.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._shown)


class PatientConsole(Console):
    """A console that raises no error of the operating system: what cannot be written is lost.

    On a terminal it shows the control characters of texts, which may quote what a model or a tool wrote, instead of sending them.
    It draws in place, which is what ``is_interactive`` says, only on a terminal where that works.

    Attributes:
        failure: the first error through which output was lost; None if there was none, or if only the reader of a pipe went away,
            as ``head`` does.
    """

    failure: OSError | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Of COLUMNS=0, which shells in editors set, rich would make lines without room for anything. A size that is set is kept
        # from then on, so that of a terminal is not: it changes with its window.
        if not self.width:
            self.width = _WIDTH
        if not self.height:
            self.height = _HEIGHT
        self.is_interactive = self.is_interactive and (bool(options.get("force_terminal")) or self._can_go_back())
        self.push_render_hook(_Harmless(self))

    def _can_go_back(self) -> bool:
        """Whether lines that were written can be drawn over.

        Under FORCE_COLOR, which CI and notebooks set for colours, rich takes any output for a terminal. And a notebook gives the
        commands of its cells (``!asyncrl ...``) a terminal whose output it appends.
        """
        return self.file.isatty() and not _in_notebook()

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Print as rich does, but wrap prose at words on a terminal, which would break lines anywhere by itself.

        Prose is whatever is given as :class:`Text` to be wrapped softly, unless it says ``no_wrap`` because it holds a command
        that can be copied, or a word longer than a line, such as a path. In a file or a pipe no line is wrapped, so that
        sentences can be searched for.
        """
        softly = self.soft_wrap if soft_wrap is None else soft_wrap
        super().print(*objects, soft_wrap=softly and not (self.is_terminal and all(map(self._is_prose, objects))), **options)

    def _is_prose(self, shown: object) -> bool:
        return isinstance(shown, Text) and not shown.no_wrap and all(cell_len(word) <= self.width for word in shown.plain.split())

    def on_broken_pipe(self) -> None:
        """Write nothing from now on. The method of rich would end the process with :class:`SystemExit`."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError as error:
            del self._buffer[:]
            self.failure = self.failure or not_shown(error)


def error_console() -> PatientConsole:
    """A console on standard error; where that is no terminal, lines are not wrapped, so that sentences can be searched for."""
    return PatientConsole(stderr=True, soft_wrap=True, highlight=False)


def say(text: str) -> None:
    """Show a line before there is a live view. Standard output is left to the recipe and the plan of a dry run."""
    error_console().print(Text(text, "dim"))


def not_shown(error: OSError) -> OSError:
    """An ``OSError`` which says that ``error`` came from writing to standard output, so that output was lost."""
    return OSError(error.errno, f"{error.strerror}; not everything could be shown", "standard output")
