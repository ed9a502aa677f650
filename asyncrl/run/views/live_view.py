"""What a user sees while a run goes on.

On a terminal: one block at the bottom that is redrawn in place, with everything that should stay (phases that ended,
notes) printed above it. Anywhere else (a file, a pipe, a CI log): plain lines, one for each phase and one every few
seconds of training. Leaving the view restores the terminal, however the run ended. All methods may be called from any
thread. Phases and notes are also logged.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from types import MappingProxyType, TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from asyncrl.core.measures.units import duration, percent, quantity
from asyncrl.core.text import as_the_program_names
from asyncrl.episodes.visible import visible
from asyncrl.run.measures.bottleneck import Bottleneck, Kind
from asyncrl.run.measures.events import NoteSaid, PhaseAdvanced, PhaseBegun, RunEvent, StepDone, finite
from asyncrl.run.measures.progress import RunProgress, smoothed

logger = logging.getLogger(__name__)

SECONDS_A_LINE = 15.0
"""Time between two lines of training progress, or of a phase that is slow, where the output is not a terminal."""
PHASE_A_LINE = 0.25
"""A phase that says how far it is has a line each time this share of it is done, where the output is not a terminal."""
REDRAWS_A_SECOND = 4
REWARDS_SHOWN = 200
"""The most training steps that the curve of rewards shows, where the terminal is wide enough."""
SMOOTHED_STEPS = 10
"""Rates and idle shares are over this many training steps: those of a single one jump about too much to be read."""
PARTS_SHOWN = 6
"""How many named parts of the reward are shown."""
PANEL_WIDTH = 4
"""Columns of the border, left and right together."""

NO_METRICS: Mapping[str, float] = MappingProxyType({})
_SPARKS = "▁▂▃▄▅▆▇█"


class LiveView:
    """Shows run ``name``; a context manager around the whole run.

    Args:
        clock: returns seconds, and is there for tests.
        tell: is told what happens, as typed events.
        quiet: show nothing but warnings.
    """

    def __init__(
        self,
        console: Console,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[RunEvent], None] = lambda event: None,
        quiet: bool = False,
    ) -> None:
        self._console, self._name, self._clock, self._quiet = console, name, clock, quiet
        self.tell = tell
        self._lock = RLock()
        self._began = self._phase_began = clock()
        self._phase = "Preparing"
        self._advanced: tuple[float, str] | None = None
        self._recent: deque[RunProgress] = deque(maxlen=SMOOTHED_STEPS)
        self._said: Kind | None = None
        self._rewards: tuple[float, ...] = ()
        self._spinner = Spinner("dots", style="cyan")
        self._next_line = 0.0
        self._phase_lines = 0
        self._live = (
            Live(console=console, get_renderable=self._draw, refresh_per_second=REDRAWS_A_SECOND, transient=True)
            if console.is_interactive and not quiet
            else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            if kind is None:
                self._end_phase()
            if self._live is not None:
                self._live.stop()

    def phase(self, text: str) -> None:
        """Show that a new phase begins, e.g. ``Starting 2 generators``, and that the one before is done."""
        with self._lock:
            self._end_phase()
            logger.info("%s", text)
            self.tell(PhaseBegun(text=text))
            self._phase, self._phase_began = text, self._clock()
            if self._live is None:
                self._line(text)

    def advance(self, fraction: float, text: str) -> None:
        """Show how far the present phase is, in [0, 1], with a text such as ``31 % of tool calls succeed``."""
        with self._lock:
            self._advanced = (fraction, text)
            self.tell(PhaseAdvanced(fraction=fraction, text=text))
            if self._live is None and (fraction >= self._phase_lines * PHASE_A_LINE or self._clock() >= self._next_line):
                self._next_line = self._clock() + SECONDS_A_LINE
                self._phase_lines = int(fraction / PHASE_A_LINE) + 1
                self._line(f"{self._phase}: {percent(fraction)}, {text}")

    def update(self, progress: RunProgress, metrics: Mapping[str, float] = NO_METRICS) -> None:
        """Show the newest training step, and tell of it with its metrics."""
        self.tell(StepDone(progress=progress, metrics=finite(metrics)))
        with self._lock:
            self._recent.append(progress)
            self._rewards = (*self._rewards, progress.reward)[-REWARDS_SHOWN:]
            if self._live is None and (self._clock() >= self._next_line or progress.step == progress.steps):
                self._next_line = self._clock() + SECONDS_A_LINE
                self._line(_progress_line(smoothed(self._recent)))
                for part in filter(None, self._news_of(progress.bottleneck).split("; ")):
                    self._line(part)

    def note(self, text: str, level: int = logging.INFO) -> None:
        """Show a line that stays, e.g. an evaluation's result or a warning; it is logged with ``level``."""
        text = as_the_program_names(text)
        logger.log(level, "%s", text)
        self.tell(NoteSaid(text=text, level=level))
        with self._lock:
            self._line(text, "yellow" if level >= logging.WARNING else "")

    def give_up_phase(self) -> None:
        """Show that the present phase will not be completed."""
        with self._lock:
            self._end_phase(("✗ ", "red"))

    def _end_phase(self, mark: tuple[str, str] = ("✓ ", "green")) -> None:
        if self._phase and self._live is not None:
            took = duration(self._clock() - self._phase_began)
            self._console.print(Text.assemble(mark, self._phase, (f"  {took}", "dim")))
        self._phase, self._advanced, self._phase_lines, self._next_line = "", None, 0, 0.0

    def _news_of(self, bottleneck: Bottleneck | None) -> str:
        """The sentence about what holds the run up; empty if an earlier line named the same kind."""
        if bottleneck is None or bottleneck.kind is self._said:
            return ""
        self._said = bottleneck.kind
        return bottleneck.sentence

    def _line(self, text: str, style: str = "") -> None:
        """Print a line that stays; not wrapped where the output is not a terminal, so that it can be searched for.

        A line may quote errors of the user's code, and these what a model wrote.
        """
        text = visible(text)
        if self._quiet and not style:
            return
        if self._live is not None:
            self._console.print(Text.assemble(("· ", "dim"), (text, style)))
        else:
            stamp = f"{duration(self._clock() - self._began):>12}"
            self._console.print(f"{stamp}  {text}", markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> RenderableType:
        """Draw the block as it is now. Takes no lock: rich calls this under its own, and our prints take ours first."""
        self._spinner.update(text=Text(self._phase))
        panel = Panel(
            Group(self._spinner, *self._below_phase()),
            title=Text.assemble(("asyncrl ", "bold"), self._name),
            title_align="left",
            subtitle=Text(duration(self._clock() - self._began), "dim"),
            subtitle_align="right",
            box=box.ROUNDED,
            border_style="dim",
        )
        # Below it stands an empty line for the ^C that a terminal writes where the cursor is: behind the border it would begin a
        # new line, which rich does not know of, and so a border would stay on the screen.
        return Group(panel, Text())

    def _below_phase(self) -> list[RenderableType]:
        advanced, recent = self._advanced, list(self._recent)
        if advanced is not None:
            return [_bar(*advanced)]
        return [*_dashboard(smoothed(recent), self._rewards, self._console.width - PANEL_WIDTH)] if recent else []


def _dashboard(progress: RunProgress, rewards: Sequence[float], width: int) -> Sequence[RenderableType]:
    label, figure = 10, 22
    rest = max(1, width - label - figure - 4)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, width=label)
    table.add_column(no_wrap=True, width=figure)
    table.add_column(overflow="ellipsis", no_wrap=True, width=rest)
    last = progress.evaluation
    evaluated = "  not yet evaluated" if last is None else f"  evaluation {last.reward:.3f} of version {last.version}"
    newest = rewards[-max(1, rest - len(evaluated)) :]
    table.add_row("reward", f"{progress.reward:.3f}", Text.assemble((_sparkline(newest), "green"), evaluated))
    if parts := list(progress.reward_parts.items()):
        shown = "  ".join(f"{visible(name)} {value:.3f}" for name, value in parts[:PARTS_SHOWN])
        more = len(parts) - PARTS_SHOWN
        table.add_row("", "of which", f"{shown}  and {more} more" if more > 0 else shown)
    table.add_row(
        "generators", f"{quantity(progress.time.generated_per_s)} tokens/s", f"idle {percent(progress.time.idle.generators)}"
    )
    table.add_row("learner", f"{quantity(progress.time.trained_per_s)} tokens/s", f"idle {percent(progress.time.idle.learner)}")
    table.add_row(
        "staleness",
        f"{progress.staleness_mean:.2f} mean",
        Text.assemble(
            _gauge(progress.staleness_max, progress.staleness_bound),
            f"  at most {progress.staleness_max:g} of {progress.staleness_bound} versions",
        ),
    )
    table.add_row(
        "buffer",
        f"{progress.time.trajectories_per_s:.1f} trajectories/s",
        f"{progress.running} groups running, {progress.committed} waiting",
    )
    table.add_row(
        "weights",
        f"version {progress.version}",
        f"delivered in {_milliseconds(progress.delivery_s)}, paused for {_milliseconds(progress.pause_s)}",
    )
    done = f"training step {progress.step} of {progress.steps}, {duration(progress.eta_s)} to go"
    sentence = "" if progress.bottleneck is None else progress.bottleneck.sentence
    return _bar(progress.step / progress.steps, done), Text(), table, Text(sentence, "dim")


def _bar(fraction: float, text: str) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    row.add_column()
    row.add_column(no_wrap=True)
    row.add_row(ProgressBar(total=1.0, completed=min(max(fraction, 0.0), 1.0), width=40), text)
    return row


def _sparkline(values: Sequence[float]) -> str:
    """Recent values as bars, from the smallest of them to the largest."""
    low, high = min(values), max(values)
    span = high - low
    return "".join(_SPARKS[round((value - low) / span * (len(_SPARKS) - 1))] if span else _SPARKS[0] for value in values)


def _gauge(value: float, bound: int) -> Text:
    """One cell for each policy version of the bound; as many are filled as the staleness is."""
    used = min(round(value), bound)
    color = "green" if value < bound else "yellow"
    return Text.assemble(("■" * used, color), ("□" * (bound - used), "dim"))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def _progress_line(progress: RunProgress) -> str:
    time = progress.time
    parts = [
        f"training step {progress.step}/{progress.steps}",
        f"reward {progress.reward:.3f}",
        f"staleness {progress.staleness_mean:.2f}, at most {progress.staleness_max:g} of {progress.staleness_bound}",
        f"tokens/s: generators {quantity(time.generated_per_s)} ({percent(time.idle.generators)} idle), "
        f"learner {quantity(time.trained_per_s)} ({percent(time.idle.learner)} idle)",
        f"{duration(progress.eta_s)} to go",
    ]
    return " · ".join(parts)
