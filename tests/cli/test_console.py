"""What others wrote reaches a terminal as text, whatever command shows it."""

import io
import os

import pytest
from rich.live import Live
from rich.table import Table
from rich.text import Text

from asyncrl.cli.console import PatientConsole
from asyncrl.run.views.live_view import LiveView

HOSTILE = "\x1b[2J\x1b]0;title\x07gone\x9b2J\u202eback"


def shown(print_it, **options) -> str:
    console = PatientConsole(file=io.StringIO(), width=80, **options)
    print_it(console)
    return console.file.getvalue()


WAYS = {
    "text": lambda console: console.print(Text(HOSTILE)),
    "markup": lambda console: console.print(HOSTILE, markup=False, highlight=False),
    "raw": lambda console: console.out(HOSTILE, highlight=False),
    "table": lambda console: console.print(_table()),
    "bold": lambda console: console.print(Text(HOSTILE, "bold red")),
}


def _table() -> Table:
    table = Table(show_header=False)
    table.add_row("problem", HOSTILE)
    return table


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "options", [{"force_terminal": True, "color_system": None}, {"stderr": True}], ids=["terminal", "stderr"]
)
def test_a_terminal_gets_no_control_characters_of_texts(way, options):
    written = shown(WAYS[way], **options)
    assert "gone" in written
    assert "\u241b[2J" in written
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(written)


def test_styles_and_what_is_drawn_in_place_still_reach_the_terminal():
    def draw(console):
        console.print(Text("red", "red"))
        with Live(Text(f"live {HOSTILE}"), console=console, auto_refresh=False) as live:
            live.refresh()
            console.print(Text(HOSTILE))

    written = shown(draw, force_terminal=True, color_system="standard", _environ={})
    assert "\x1b[31mred\x1b[0m" in written
    assert "\x1b[?25l" in written, "the cursor is hidden while something is drawn in place"
    assert "\x1b]0;title" not in written.partition("live")[0]


def test_a_pipe_gets_what_was_written():
    assert "\x1b[2J" in shown(WAYS["raw"])
    assert "\x9b2J\u202eback" in shown(WAYS["raw"])


def test_a_pipe_that_asks_for_colours_is_not_drawn_over(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = PatientConsole(file=io.StringIO(), width=80)
    with LiveView(console, "quickstart") as view:
        view.phase("Starting")
        view.note("mind this", level=30)
    written = console.file.getvalue()
    assert "Starting" in written
    assert not any(code in written for code in ("\x1b[?25l", "\x1b[1A", "\x1b[2K"))


@pytest.mark.parametrize("sign", [("JPY_PARENT_PID", "1"), ("MPLBACKEND", "module://matplotlib_inline.backend_inline")])
def test_a_notebooks_terminal_is_not_drawn_over(sign, monkeypatch):
    """That of ``!asyncrl launch``: what is written there is appended to the cell's output."""
    monkeypatch.setenv("TERM", "xterm-color")
    for name in ("JPY_PARENT_PID", "MPLBACKEND"):
        monkeypatch.delenv(name, raising=False)
    ours, theirs = os.openpty()
    with open(theirs, "w") as file:
        assert PatientConsole(file=file).is_interactive
        monkeypatch.setenv(*sign)
        assert not PatientConsole(file=file).is_interactive
    os.close(ours)


def test_a_size_of_0_by_0_is_none(monkeypatch):
    """Shells in editors set it. Nothing was shown at all."""
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setenv("LINES", "0")
    console = PatientConsole(file=io.StringIO())
    assert (console.width, console.height) == (80, 25)
    console.print(_table())
    assert "gone" in console.file.getvalue()


def test_the_size_follows_the_terminals_window(monkeypatch):
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    console = PatientConsole(file=io.StringIO())
    for now in map(os.terminal_size, ((100, 30), (60, 20))):
        monkeypatch.setattr(os, "get_terminal_size", lambda _, now=now: now)
        assert (console.width, console.height) == now
