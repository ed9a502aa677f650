import io
import logging
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from made_progress import PROGRESS
from rich.console import Console

from asyncrl.run.measures.bottleneck import Bottleneck, Kind
from asyncrl.run.measures.summary import PlayedEvaluation
from asyncrl.run.recipe.compose import compose
from asyncrl.run.views import live_view
from asyncrl.run.views.live_view import LiveView

LONGEST_LINE = 170
"""Characters that a reader takes in; lines are not wrapped where they can be searched for."""
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture(scope="module")
def recipe():
    return compose("quickstart")


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=30, color_system=None, _environ={})


@pytest.fixture
def pipe():
    return Console(file=io.StringIO(), force_terminal=False, width=40, _environ={})


def written(console: Console) -> str:
    return console.file.getvalue()


def test_plain_output_is_a_line_a_phase_and_a_line_every_few_seconds(pipe, recipe):
    clock = Clock()
    with LiveView(pipe, recipe.name, clock) as view:
        view.phase("Starting 2 generators")
        view.phase("Training")
        for step in range(1, 61):
            clock.seconds = step * 1.0
            view.update(msgspec.structs.replace(PROGRESS, step=step))
        view.note("version 60: evaluation reward 0.95 over [128] tasks")
    lines = written(pipe).splitlines()
    steps = [line.split("step ")[1].split("/")[0] for line in lines if "step " in line]
    assert steps == ["1", "16", "31", "46", "60"]
    assert len(lines) == 2 + 5 + 1 + 1, "of phases, training, what holds the run up, and a note"
    assert lines[0] == "       0.0 s  Starting 2 generators"
    assert lines[-1].endswith("version 60: evaluation reward 0.95 over [128] tasks")
    assert "staleness 1.21, at most 3 of 4" in lines[2]
    assert max(map(len, lines)) <= LONGEST_LINE
    assert "\x1b" not in written(pipe)


def test_plain_lines_say_what_holds_the_run_up_only_when_that_has_changed(pipe, recipe):
    clock = Clock()
    with LiveView(pipe, recipe.name, clock) as view:
        for step, kind, share in (
            (1, Kind.LEARNER, 70),
            (20, Kind.LEARNER, 71),
            (40, Kind.GENERATION, 60),
            (60, Kind.LEARNER, 72),
        ):
            clock.seconds = step * 1.0
            bottleneck = Bottleneck(kind, share / 100, f"{kind}-bound: {share} %; no key helps")
            view.update(msgspec.structs.replace(PROGRESS, step=step, bottleneck=bottleneck))
    told = [line[14:] for line in written(pipe).splitlines() if "training step" not in line]
    assert told == [
        *("learner-bound: 70 %", "no key helps"),
        *("generation-bound: 60 %", "no key helps"),
        *("learner-bound: 72 %", "no key helps"),
    ]


def test_rates_are_over_the_time_of_the_last_training_steps(terminal, recipe):
    with LiveView(terminal, recipe.name, Clock()) as view:
        for step, (rate, seconds) in enumerate([(90_000.0, 1.0)] * 20 + [(1_000.0, 9.0)] * 9 + [(10_000.0, 1.0)]):
            time = msgspec.structs.replace(PROGRESS.time, seconds=seconds, generated_tokens=round(rate * seconds))
            view.update(msgspec.structs.replace(PROGRESS, step=step, time=time))
        with terminal.capture() as captured:
            terminal.print(view._draw())
    assert "1,110 tokens/s" in captured.get()  # (81 * 1,000 + 10,000) / 82


def test_named_parts_of_the_reward_stand_below_it(terminal, recipe):
    parts = {"right": 0.4, "polite": 0.112, **{f"further_{number}": 0.0 for number in range(6)}}
    with LiveView(terminal, recipe.name, Clock()) as view:
        view.update(msgspec.structs.replace(PROGRESS, reward_parts=parts))
    assert "of which" in written(terminal)
    assert "right 0.400  polite 0.112" in written(terminal)


def test_plain_warm_up_is_a_few_lines(pipe, recipe):
    with LiveView(pipe, recipe.name, Clock()) as view:
        view.phase("Making the tiny model")
        for hundredth in range(101):
            view.advance(hundredth / 100, "31 % of calls succeed")
        view.phase("Starting")
        view.advance(0.0, "again")
    lines = written(pipe).splitlines()
    assert [line.split(": ")[1].split(",")[0] for line in lines[1:6]] == ["0 %", "25 %", "50 %", "75 %", "100 %"]
    assert len(lines) == 1 + 5 + 1 + 1


def test_the_dashboard_shows_both_sides_and_staleness_against_its_bound(terminal, recipe):
    with LiveView(terminal, recipe.name, Clock()) as view:
        view.phase("Training")
        view.update(PROGRESS)
    shown = written(terminal)
    for told in (
        "asyncrl quickstart",
        "training step 12 of 60, 2 min 05 s to go",
        "0.512",
        "evaluation 0.610 of version 10",
        "12,345 tokens/s",
        "idle 3 %",
        "23,456 tokens/s",
        "idle 31 %",
        "■■■□",
        "at most 3 of 4 versions",
        "20 groups running, 7 waiting",
        "delivered in 43 ms, paused for 12 ms",
    ):
        assert told in shown


def test_the_dashboard_fits_a_terminal_of_80_columns_whatever_the_step(recipe):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=30, color_system=None, _environ={})
    evaluated = PlayedEvaluation(1000, 1000, 1000, 0.61)
    with LiveView(console, recipe.name, Clock()) as view:
        view.phase("Training")
        for step in range(100):
            view.update(
                msgspec.structs.replace(PROGRESS, step=step, reward=step / 100, evaluation=evaluated if step >= 50 else None)
            )
        last = view._draw()
    with console.capture() as captured:
        console.print(last)
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in captured.get()
    for told in ("evaluation 0.610", "█  evaluation", "delivered in 43 ms, paused for 12 ms", "at most 3 of 4 versions"):
        assert told in captured.get()


def test_a_phase_that_was_given_up_is_not_told_as_done(terminal, recipe):
    with LiveView(terminal, recipe.name, Clock()) as view:
        view.phase("Training")
        view.give_up_phase()
        view.note("Stopping")
    assert "✗ Training" in written(terminal)
    assert "✓ Training" not in written(terminal)


@pytest.mark.parametrize("next_phase", [None, "Starting"])
def test_the_warm_up_bar_goes_with_its_phase(terminal, recipe, next_phase):
    def fail() -> None:
        with LiveView(terminal, recipe.name, Clock()) as view:
            view.phase("Making the tiny model")
            view.advance(0.4, "31 % of calls succeed")
            if next_phase:
                view.phase(next_phase)
            raise RuntimeError("leaves what was shown last")

    with pytest.raises(RuntimeError):
        fail()
    last = written(terminal).rpartition("asyncrl quickstart")[2]
    assert ("31 % of calls succeed" in last) is (next_phase is None)
    assert ("✓ Making the tiny model" in written(terminal)) is (next_phase is not None)


def test_text_that_looks_like_markup_is_shown_as_it_is(terminal, recipe):
    with LiveView(terminal, recipe.name, Clock()) as view:
        view.phase("reading [bold]x[/nonsense]")
        view.note("[red]y")
    assert "reading [bold]x[/nonsense]" in written(terminal)
    assert "[red]y" in written(terminal)


def test_a_note_is_logged_with_its_level(pipe, recipe, caplog):
    with caplog.at_level(logging.INFO), LiveView(pipe, recipe.name, Clock()) as view:
        view.note("an evaluation's result")
        view.note("Warning: all rewards are equal", logging.WARNING)
    levels = [record.levelname for record in caplog.records if record.name == live_view.__name__]
    assert levels == ["INFO", "WARNING"]


@pytest.mark.parametrize("kind", ["terminal", "pipe"])
def test_a_note_cannot_steer_the_terminal(kind, request, recipe):
    console = request.getfixturevalue(kind)
    with LiveView(console, recipe.name, Clock()) as view:
        view.note("raised ValueError: \x1b]0;title\x07 \u202ea \x9b")
    assert "ValueError: ␛]0;title␇ \\u202ea \\x9b" in written(console)


def test_the_terminal_is_restored_after_an_exception(terminal, recipe):
    def fail() -> None:
        with LiveView(terminal, recipe.name, Clock()) as view:
            view.phase("Training")
            assert written(terminal).rfind(HIDE_CURSOR) > written(terminal).rfind(SHOW_CURSOR)
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert written(terminal).rfind(SHOW_CURSOR) > written(terminal).rfind(HIDE_CURSOR)
    assert "✓ Training" not in written(terminal)


def test_many_threads_may_write_while_it_is_redrawn(terminal, recipe):
    with LiveView(terminal, recipe.name) as view, ThreadPoolExecutor(4) as threads:
        view.phase("Training")
        writing = [
            threads.submit(view.update if number % 2 else view.note, PROGRESS if number % 2 else "x") for number in range(400)
        ]
        for written_one in writing:
            written_one.result(timeout=30)
