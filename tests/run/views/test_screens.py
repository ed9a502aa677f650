"""What a person sees of a launch, in terminals of three widths."""

import re
import signal

import pytest
import shown_run
from terminal import terminal

from asyncrl.cli.outcome import ExitCode


def words_of(lines: list[str]) -> list[str]:
    return " ".join(lines).replace("│", " ").split()


def holds(lines: list[str], sentence: str) -> bool:
    """Whether the words of the sentence stand one after the other, in one line or several."""
    return f" {' '.join(sentence.split())} " in f" {' '.join(words_of(lines))} "


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_a_launch_is_readable_at_every_width(tmp_path, columns):
    with terminal([shown_run.__file__, str(tmp_path)], columns, lines=45) as screen:
        shown = screen.wait_for(lambda lines: holds(lines, shown_run.SENTENCE) and any(line.endswith(" s ─╯") for line in lines))
        assert any(line.startswith("  generators.count ") for line in shown), "choices are a list"
        (top,) = [line for line in shown if line.startswith("╭─ asyncrl quickstart")]
        assert len(top) == columns, "the whole width is used"
        assert screen.style_of("Warning: in the last").fg == "brown"  # what terminals show as yellow
        assert "of which" in " ".join(shown)
        assert holds(shown, "right 0.600 brief -0.010")
        assert holds(shown, f"Warning: {shown_run.WARNING}")
        screen.press("\x03")  # the terminal writes ^C where the cursor is; nobody gets a signal, since it controls no session
        screen.process.send_signal(signal.SIGUSR1)
        assert screen.wait() == ExitCode.COMPLETED
        lines = screen.everything
    assert not any("─ asyncrl quickstart" in line for line in lines), "the live view is gone"
    assert holds(lines, shown_run.SENTENCE)
    assert holds(lines, f"Warning: {shown_run.WARNING} Read its worst episodes:")
    text = "".join(line.ljust(columns) for line in lines)  # a command longer than a line goes on in the next, without a break
    (folder,) = tmp_path.glob("quickstart-*")
    assert f"asyncrl show {folder} --sort reward" in text
    assert re.search(rf"asyncrl report {re.escape(str(folder))}( |Compare)", text), "it may fill its line"
