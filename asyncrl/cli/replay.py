"""``asyncrl replay``: computes training steps of a run again, offline, and shows what carried them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rich.text import Text

from asyncrl.cli.arguments import command, count, run_here, whole_number
from asyncrl.cli.outcome import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands
    from asyncrl.replay.replay import Replay
    from asyncrl.replay.replay_plan import Row

_DESCRIPTION = """\
Compute training steps of a run again, from its journal and checkpoints, without
engines and without Ray, on whatever ranks fit this machine. In the run's own
layout, on the same hardware, losses, gradient norms and weights are the recorded
ones to the bit; elsewhere they are close to them."""

_EXAMPLES = """\
examples:
  asyncrl replay RUN --step 12                  is it the same again?
  asyncrl replay RUN --step 12 --top 20         what carried the step?
  asyncrl replay RUN --step 12 --without 97/3   and without that row?
  asyncrl replay RUN --step 12:20 learner.lr=1e-5 algorithm.loss.clip_high=0.2
  asyncrl replay RUN --step 12 --hook my_module:look
  asyncrl replay RUN --step 12 learner.data_parallel=1

Which steps are there is said by checkpoint.keep and buffer.journal.keep: see
docs/how-to/replay.md."""


def add_command(commands: Commands) -> None:
    """Add the command ``replay``."""
    summary = "compute training steps of a run again"
    parser = command(commands, "replay", summary, _DESCRIPTION, run, starts=True, epilog=_EXAMPLES)
    parser.add_argument("folder", metavar="RUN", type=run_here, help="the run's folder")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="what would have happened with this in the recipe")
    parser.add_argument("--step", metavar="N[:M]", type=steps_of, required=True, help="the step, or the first and the last")
    parser.add_argument("--hook", metavar="MODULE:FUNCTION", help="call this with every micro-batch and its tensors")
    parser.add_argument(
        "--top", metavar="N", type=count, nargs="?", const=20, default=0, help="the rows and tokens that carried it"
    )
    parser.add_argument(
        "--gap", metavar="N", type=count, nargs="?", const=20, default=0, help="the tokens where learner and engine differ most"
    )
    parser.add_argument(
        "--without", metavar="ROW[,ROW...]", type=_rows, default=(), help="what would have happened without these: GROUP/SAMPLE"
    )


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Replay, and show how it compares."""
    import logging

    from rich.console import Console

    from asyncrl.replay.replay import Request, replay
    from asyncrl.run.views.live_view import LiveView

    first, last = arguments.step
    request = Request(
        run=arguments.folder,
        first=first,
        last=last,
        overrides=tuple(arguments.overrides),
        without=arguments.without,
        hook=arguments.hook,
        top=arguments.top,
        gap=arguments.gap,
    )
    logging.getLogger().addHandler(logging.NullHandler())
    # A hook may have the terminal, and a debugger in it: then nothing redraws lines there.
    shown = Console(file=console.file, width=console.width, force_terminal=False) if arguments.hook else console
    with LiveView(shown, f"replay of {arguments.folder.name}") as view:
        done = replay(request, view)
    return _show(done, console, with_text=bool(arguments.top or arguments.gap))


def _show(done: Replay, console: Console, *, with_text: bool) -> ExitCode:
    from asyncrl.episodes.writer import decoder
    from asyncrl.replay.rank_process import episodes_of
    from asyncrl.replay.replay import ReplayedStep
    from asyncrl.replay.view import Episodes, replay_view

    def episodes(step: ReplayedStep) -> Episodes:
        names = [*(row.name for row in step.rows), *(token.row for token in (*step.tokens, *step.gaps))]
        return episodes_of(step.batch, names, done.payload)

    decode = decoder(done.model_path) if with_text else lambda ids: ""
    for part in replay_view(done, episodes, decode):
        console.print(part, soft_wrap=isinstance(part, Text))
    compared = [step.comparison for step in done.steps if step.comparison is not None]
    came_to_end = not any(step.diverged for step in done.steps)
    return ExitCode.COMPLETED if came_to_end and all(each.holds for each in compared) else ExitCode.FAILED


def steps_of(text: str) -> tuple[int, int]:
    """The numbers of a step, or of the first and the last: ``12`` or ``12:20``."""
    first, colon, last = text.partition(":")
    steps = whole_number(first, 1), whole_number(last if colon else first, 1)
    if steps[0] > steps[1]:
        raise argparse.ArgumentTypeError(f"{text!r} ends before it begins")
    return steps


def _rows(text: str) -> tuple[Row, ...]:
    from asyncrl.replay.replay_plan import Row

    return tuple(Row(*map(whole_number, _parts(row))) for row in text.split(","))


def _parts(row: str) -> list[str]:
    parts = row.split("/")
    if len(parts) > 3:
        raise argparse.ArgumentTypeError(f"{row!r} must be GROUP, GROUP/SAMPLE or GROUP/SAMPLE/PART, e.g. 97/3")
    return parts
