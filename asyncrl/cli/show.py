"""``asyncrl show``: a reader of the episodes that a run kept."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from asyncrl.cli.arguments import command, count, run_to_read, whole_number
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.errors import RecipeError

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import RenderableType

    from asyncrl.cli.arguments import Commands
    from asyncrl.episodes.reader import EpisodeReader
    from asyncrl.run.folder.run_folder import RunFolder

_DESCRIPTION = """\
Read the episodes that a run kept, one a page: prompt, turns, tool calls and
rewards in place, and what became of the tokens. On a terminal, n and p turn
the page, arrows and space scroll, q ends. Of an episode with several
trajectories each has a page, with the tree of all. Only reads, so the run may
be live; neither task files nor the model are needed."""

_EXAMPLES = """\
examples:
  asyncrl show RUN --sort reward            the worst episodes first
  asyncrl show RUN --sort gap --limit 5     where engine and learner differ most
  asyncrl show RUN --step 12 --task train-3
  asyncrl show RUN --evaluation --step 20   the evaluation of version 20
  asyncrl show RUN --json | jq .reward

Which episodes are kept is said by tracking.trajectories: by default 8 of each
training step, so the worst one shown is the worst of these, not of all that were
played. See docs/start/reading-a-run.md."""

SORTS = ("reward", "gap", "staleness", "length")


def add_command(commands: Commands) -> None:
    """Add the command ``show``."""
    parser = command(commands, "show", "read kept episodes", _DESCRIPTION, run, epilog=_EXAMPLES)
    parser.add_argument("folder", metavar="RUN", type=run_to_read, help="the run's folder")
    parser.add_argument("--evaluation", action="store_true", help="episodes of evaluations instead of those of training")
    parser.add_argument(
        "--step", metavar="N", type=whole_number, help="of this training step, or of the evaluation of this version"
    )
    parser.add_argument("--task", metavar="ID", help="of this task")
    parser.add_argument("--sort", choices=SORTS, help="lowest reward, or largest engine-learner gap, staleness or length, first")
    parser.add_argument("--limit", metavar="N", type=count, help="show this many at most")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each, with all columns")


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Find the chosen episodes, and show them."""
    from asyncrl.episodes.measures import Measure
    from asyncrl.episodes.reader import Choice, EpisodeReader, no_such_episodes
    from asyncrl.episodes.schema import Kind
    from asyncrl.run.views.pager import is_interactive

    reader = EpisodeReader(_one_model(arguments.folder).trajectories)
    only_evaluated = not reader.steps(Kind.TRAIN) and bool(reader.steps(Kind.EVALUATION))
    kind = Kind.EVALUATION if arguments.evaluation or only_evaluated else Kind.TRAIN
    choice = Choice(kind=kind, step=arguments.step, task=arguments.task)
    by = Measure(arguments.sort) if arguments.sort else None
    if by is Measure.GAP and kind is Kind.EVALUATION:
        remedy = "sort by reward, length or staleness"
        raise RecipeError("", "episodes of an evaluation have no engine-learner gap: no learner saw them", remedy)
    chosen = reader.places(choice, by)
    if not len(chosen):
        raise no_such_episodes(reader, choice)
    places = chosen if arguments.limit is None else chosen.slice(0, arguments.limit)
    if arguments.json:
        _print_json(reader, places, console)
    elif is_interactive(console):
        _turn_pages(reader, places, len(chosen), console)
    else:
        _print_pages(reader, places, len(chosen), console)
    return ExitCode.COMPLETED


def _one_model(path: Path) -> RunFolder:
    """Return the folder of a run, or that of the only model of an evaluation."""
    from asyncrl.run.folder.run_folder import RunFolder

    models = [] if (path / "recipe.yaml").exists() else RunFolder.below(path)
    return RunFolder.find(models[0] if len(models) == 1 else path)


def _print_json(reader: EpisodeReader, places: pa.Table, console: Console) -> None:
    import msgspec

    from asyncrl.episodes.visible import visible_json

    for episode in reader.read(places):
        line = msgspec.json.encode(episode).decode()
        console.out(visible_json(line) if console.is_terminal else line, highlight=False)


def _print_pages(reader: EpisodeReader, places: pa.Table, of: int, console: Console) -> None:
    from asyncrl.run.views.episode_view import episode_view

    for number, episode in enumerate(reader.read(places), 1):
        console.print(episode_view(episode, f"{number:,} of {of:,}", reader.tree(episode)))


def _turn_pages(reader: EpisodeReader, places: pa.Table, of: int, console: Console) -> None:
    from asyncrl.run.views.episode_view import episode_view
    from asyncrl.run.views.pager import show_pages

    def page(number: int) -> RenderableType:
        (episode,) = reader.read(places.slice(number, 1))
        return episode_view(episode, f"{number + 1:,} of {of:,}", reader.tree(episode))

    show_pages(console, len(places), page)
