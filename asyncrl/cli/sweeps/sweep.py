"""``asyncrl sweep``: runs settings of a recipe beside each other with several seeds, and compares them."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from asyncrl.cli.arguments import command, count, run_to_read
from asyncrl.cli.console import say
from asyncrl.cli.launch import accept, is_override
from asyncrl.cli.outcome import ExitCode, logging_to
from asyncrl.run.host.signals import Heard, StopRequests, hearing

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands
    from asyncrl.core.recipe.schema import Recipe
    from asyncrl.run.dry_run.plan import Plan
    from asyncrl.sweeps.prepared import Asked, Prepared
    from asyncrl.sweeps.sweep_folder import SweepFolder
    from asyncrl.sweeps.sweeping import Sweeping

_DESCRIPTION = """\
Run a recipe with all combinations of some values, each with the same seeds, and
compare them. All of them are checked before the first one starts. One that
fails does not end the others."""

_EXAMPLES = """\
examples:
  asyncrl sweep quickstart buffer.max_staleness=0,2,4 --seeds 3
  asyncrl sweep my.yaml learner.lr=1e-5,3e-5 'batch.group_size=range(4,17,4)'
  asyncrl sweep my.yaml generators.count=1,2 buffer.pipeline_depth=1,2,4 --plan
  asyncrl sweep my.yaml learner.lr=1e-5,3e-5 --dry-run    check, list, start nothing
  asyncrl sweep --resume runs/NAME-sweep-TIME             go on with what is missing
  asyncrl report runs/NAME-sweep-TIME                     compare, also while it runs

Values are written in Hydra's grammar. docs/how-to/sweeps.md says more."""

SHOW_S = 2.0
"""How often the line on the running points is drawn anew, on a terminal."""


def add_command(commands: Commands) -> None:
    """Add the command ``sweep``."""
    parser = command(commands, "sweep", "run and compare settings of a recipe", _DESCRIPTION, run, starts=True, epilog=_EXAMPLES)
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="path of a .yaml file, or the name of a shipped recipe")
    parser.add_argument(
        "overrides", metavar="KEY=VALUES", nargs="*", help="the values of a key (A,B,C), or a change that holds for all"
    )
    parser.add_argument("--seeds", metavar="N", type=count, help="run each setting so often; seeds begin at the recipe's")
    parser.add_argument("--parallel", metavar="N", type=count, default=1, help="so many runs side by side on this machine")
    parser.add_argument("--plan", action="store_true", help="predict all settings first, and drop those that others dominate")
    parser.add_argument(
        "--from", dest="source", metavar="RUN", type=run_to_read, help="with --plan: rates and episodes of this run"
    )
    parser.add_argument("--rates", metavar="FILE", help="with --plan: rates of a file, or of the shipped file of that name")
    parser.add_argument("--dry-run", action="store_true", help="check and list all runs, and start nothing")
    parser.add_argument("--resume", metavar="SWEEP", type=Path, help="go on with the sweep in this folder")
    parser.set_defaults(parser=parser)


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Check the sweep, and run it unless this is a dry run."""
    from asyncrl.sweeps.prepared import Asked, Foresight
    from asyncrl.sweeps.view import points_view

    _check_usage(arguments)
    if arguments.resume is not None:
        return run_missing(resumed(arguments.resume, arguments.parallel), arguments.parallel, console)
    asked = Asked(
        recipe=arguments.recipe,
        overrides=tuple(arguments.overrides),
        seeds=arguments.seeds,
        parallel=arguments.parallel,
        foresight=Foresight(arguments.source, arguments.rates, not arguments.dry_run) if arguments.plan else None,
    )
    if arguments.dry_run:
        console.print(points_view(_prepare(asked, console).sweep))
        say("The sweep can be run; nothing was started.")
        return ExitCode.COMPLETED
    return run_missing(make(asked, console), arguments.parallel, console)


def make(asked: Asked, console: Console) -> SweepFolder:
    """Check a sweep, and make its folder.

    Raises:
        RecipeError: it is refused; no folder was made.
    """
    from asyncrl.run.views.end_view import near, place
    from asyncrl.sweeps.sweep_folder import SweepFolder

    prepared = _prepare(asked, console)
    folder = SweepFolder.create(prepared.run_dir, prepared.sweep, prepared.recipes)
    console.print(place("Sweep folder", near(folder.path)), soft_wrap=True)
    return folder


def resumed(path: Path, parallel: int) -> SweepFolder:
    """Find a sweep that is to go on.

    Raises:
        RecipeError: there is none, or no room for so many runs side by side.
    """
    from asyncrl.sweeps.side_by_side import check_resumed
    from asyncrl.sweeps.sweep_folder import SweepFolder

    folder = SweepFolder.find(path)
    check_resumed(folder, folder.read(), parallel)
    return folder


def _check_usage(arguments: argparse.Namespace) -> None:
    fail = arguments.parser.error
    if (arguments.source is not None or arguments.rates is not None) and not arguments.plan:
        fail("--from and --rates say what --plan stands on: give --plan, too")
    if arguments.resume is not None:
        asked = arguments.recipe is not None or arguments.overrides or arguments.seeds or arguments.plan or arguments.dry_run
        if asked:
            fail("--resume SWEEP goes on with a sweep as it was asked for; only --parallel may be given with it")
    elif arguments.recipe is None or is_override(arguments.recipe):
        fail("give a RECIPE first, or --resume SWEEP")


def _prepare(asked: Asked, console: Console) -> Prepared:
    from asyncrl.sweeps.prepared import prepare

    def accepted(overrides: Sequence[str]) -> tuple[Recipe, Plan]:
        found = accept(asked.recipe, overrides, None)
        return found.recipe, found.plan

    prepared = prepare(asked, accepted, say)
    for remark in prepared.remarks:
        console.print(Text(f"Note: {remark}", "yellow"), soft_wrap=True)
    for setting in prepared.sweep.settings:
        if setting.dropped:
            console.print(Text(f"Left out: {setting.name}: {setting.dropped}", "yellow"), soft_wrap=True)
    return prepared


def run_missing(folder: SweepFolder, parallel: int, console: Console, begun: Callable[[], None] = lambda: None) -> ExitCode:
    """Run what is missing of a sweep, and show what came of it.

    Args:
        begun: called when nothing is refused any more.

    Raises:
        RecipeError: the folder cannot be read, another process drives the sweep, or there are too few GPUs.
        TrackingFailed: MLflow refuses it, or cannot be reached.
    """
    import asyncio

    from asyncrl.run.host.system_limits import allow_open_files
    from asyncrl.run.tracking.tracker import TrackingFailed
    from asyncrl.run.views.end_view import near, place
    from asyncrl.sweeps.parent_run import TrackedSweep
    from asyncrl.sweeps.side_by_side import devices
    from asyncrl.sweeps.sweep_folder import PointState
    from asyncrl.sweeps.sweeping import Sweeping
    from asyncrl.sweeps.view import outcome_view

    allow_open_files()
    sweep = folder.read()
    with folder.driven(), logging_to(folder.logs / "sweep.log"):
        left = [point for point in sweep.points if folder.state_of(point)[0] is not PointState.COMPLETED]
        gpus_each = max((sweep.settings[point.setting].size.gpus for point in left), default=0.0)
        gpus = devices(max(1, min(parallel, len(left))), gpus_each)
        begun()
        tracked = TrackedSweep(folder, sweep, folder.tracking(sweep))
        sweeping = Sweeping(folder, sweep, _launch_command, gpus, lambda text: console.print(Text(text), soft_wrap=True))
        stopped = asyncio.run(_to_end(sweeping, console))
        missing = any(folder.state_of(point)[0] is not PointState.COMPLETED for point in sweep.points)
        try:
            tracked.end("KILLED" if stopped else "FAILED" if missing else "FINISHED")
        except TrackingFailed as error:  # what the points found is here all the same
            console.print(Text(f"Note: the sweep's own run there says nothing of its end: {error}", "yellow"), soft_wrap=True)
    for part in outcome_view(sweep, folder.completed(sweep)):
        console.print(part, soft_wrap=isinstance(part, Text))
    here = shlex.quote(near(folder.path))
    console.print(place("Compare in one HTML file", f"asyncrl report {here}"), soft_wrap=True)
    if missing:
        console.print(place("Go on with", f"asyncrl sweep --resume {here}"), soft_wrap=True)
    return ExitCode.INTERRUPTED if stopped else ExitCode.FAILED if missing else ExitCode.COMPLETED


def _launch_command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "asyncrl.cli.sweeps.point", str(os.getpid()), "launch", *arguments]


async def _to_end(sweeping: Sweeping, console: Console) -> bool:
    """Run the sweep, stopping it at the first Ctrl-C or SIGTERM; returns whether it was stopped."""
    from asyncrl.sweeps.sweeping import until_over

    requests = StopRequests(time.monotonic)
    stopped = False
    import asyncio

    loop = asyncio.get_running_loop()

    def stop() -> None:
        nonlocal stopped
        if requests.heard() is Heard.SAME:
            return
        if not stopped:
            told = "Stopping the running points in order; press Ctrl-C again to kill them"
            console.print(Text(told, "yellow"), soft_wrap=True)
        stopped = True
        sweeping.stop()

    status = console.status("") if console.is_interactive else nullcontext()
    with status as shown, hearing(lambda number: loop.call_soon_threadsafe(stop)):

        def show(text: str) -> None:
            if shown is not None:
                shown.update(Text(text, "dim"))

        await until_over(sweeping, show, SHOW_S)
    return stopped
