"""``asyncrl launch``: checks a recipe and runs it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from asyncrl.cli.arguments import command
from asyncrl.cli.console import say
from asyncrl.cli.outcome import ExitCode, run_to_end, show_refusal
from asyncrl.core.errors import RecipeError

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands
    from asyncrl.core.recipe.schema import Recipe
    from asyncrl.run.folder.run_folder import RunFolder
    from asyncrl.run.measures.summary import Summary
    from asyncrl.run.plan.plan import Plan
    from asyncrl.run.plan.prompt_lengths import TooLong
    from asyncrl.run.resume import Reached
    from asyncrl.run.views.live_view import LiveView

_DESCRIPTION = """\
Run a recipe. It is checked in full before anything starts. All files of the run
are in one folder, runs/NAME-TIME."""

_EXAMPLES = """\
examples:
  asyncrl launch quickstart                     a shipped recipe
  asyncrl launch my/recipe.yaml                 one of your own
  asyncrl launch quickstart learner.lr=1e-4 generators.count=3
  asyncrl launch quickstart +pace=synchronous   with a config group
  asyncrl launch quickstart --dry-run           check and show, start nothing
  asyncrl launch --resume runs/NAME-TIME        go on with a run that has ended
  asyncrl launch --resume runs/NAME-TIME steps=200    and change its recipe

Every key, its range and its default: docs/recipe.md."""


def add_command(commands: Commands) -> None:
    """Add the command ``launch``."""
    parser = command(commands, "launch", "run a recipe", _DESCRIPTION, run, epilog=_EXAMPLES)
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="path of a .yaml file, or the name of a shipped recipe")
    parser.add_argument(
        "overrides",
        metavar="KEY=VALUE",
        nargs="*",
        help="set a key; ~KEY removes one, GROUP=OPTION chooses a config, +GROUP=OPTION adds one (Hydra's grammar)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the resolved recipe and the plan, and start nothing")
    parser.add_argument(
        "--resume",
        metavar="RUN",
        type=Path,
        help="go on with the run in this folder, by its own recipe and these changes",
    )
    parser.add_argument(
        "--from",
        dest="start",
        metavar="FOLDER",
        type=Path,
        help="where relative paths of a resumed run's recipe begin, if its project has moved; else where it was launched",
    )
    parser.set_defaults(parser=parser)


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Compose the recipe, check it, and launch it unless this is a dry run."""
    if arguments.resume is not None and arguments.recipe is not None and is_override(arguments.recipe):
        arguments.overrides.insert(0, arguments.recipe)
        arguments.recipe = None
    if (arguments.recipe is None) == (arguments.resume is None):
        arguments.parser.error("give either a RECIPE, or --resume RUN without one: a resumed run has its own recipe")
    if arguments.resume is None:
        if arguments.start is not None:
            arguments.parser.error("--from goes with --resume: the paths of a new run begin in the current folder")
        return _run(arguments, console, None)
    from asyncrl.run.folder.launch_directory import in_launch_directory
    from asyncrl.run.folder.run_folder import RunFolder

    try:
        found = RunFolder.find(arguments.resume)
        with in_launch_directory(found, arguments.start):
            return _run(arguments, console, found.path)
    except RecipeError as error:
        return show_refusal(error)


def _run(arguments: argparse.Namespace, console: Console, resume: Path | None) -> ExitCode:
    """Do :func:`run` for a new run, or for the run in the folder ``resume``."""
    try:
        accepted = accept(arguments.recipe, arguments.overrides, resume)
        if arguments.dry_run:
            _show(accepted.recipe, accepted.plan, console)
            say("The recipe can be launched; nothing was started.")
            return ExitCode.COMPLETED
        folder = accepted.make_folder()
    except RecipeError as error:
        if resume is not None:
            raise
        return show_refusal(error)
    return start(accepted, folder, console)


def is_override(word: str) -> bool:
    """Whether a word of the command line changes a recipe instead of naming one."""
    return not Path(word).exists() and ("=" in word or word[:1] in ("~", "+"))


class Accepted(NamedTuple):
    """A run that may be started.

    Attributes:
        resumed: the folder of a run that is resumed; None for a new run.
        reached: how far a run that is resumed had come.
    """

    recipe: Recipe
    plan: Plan
    resumed: RunFolder | None
    reached: Reached | None

    def make_folder(self) -> RunFolder:
        """Return the run's folder; that of a new run is made now.

        Raises:
            RecipeError: it cannot be made.
        """
        from asyncrl.run.folder.run_folder import RunFolder

        return self.resumed or RunFolder.create(self.recipe)


def accept(recipe: str | None, overrides: Sequence[str], resume: Path | None) -> Accepted:
    """Check the recipe, or the run to resume, without starting or changing anything.

    Raises:
        RecipeError: it cannot be run.
    """
    import msgspec

    from asyncrl.run.buffer.tasks import with_pinned_data_sets
    from asyncrl.run.folder.run_folder import RunFolder
    from asyncrl.run.host.open_files import check_open_files
    from asyncrl.run.nodes.machine import Machine
    from asyncrl.run.plan.plan import make_plan

    # Only Hydra and the environment's own module are imported here; Ray and the engines wait until the recipe is accepted.
    from asyncrl.run.recipe.compose import compose_for
    from asyncrl.run.resume import check_changes, check_resumable

    check_open_files()
    found = RunFolder.find(resume) if resume else None
    if found is not None:
        check_changes(overrides)
    machine = Machine.for_runs()
    composed, choices = compose_for(machine, str(found.recipe) if found else str(recipe), overrides)
    if found is None:
        composed = with_pinned_data_sets(composed)
    plan = make_plan(composed, machine, choices, say, found.path if found else None)
    if found is None:
        return Accepted(composed, plan, None, None)
    reached = check_resumable(composed, found)
    return Accepted(composed, plan, found, msgspec.structs.replace(reached, changed=bool(overrides)))


def start(accepted: Accepted, folder: RunFolder, console: Console) -> ExitCode:
    """Run to the end, and show what was chosen before and how it ended after."""
    from asyncrl.run.host.open_files import allow_open_files

    allow_open_files()
    plan, reached = accepted.plan, accepted.reached
    if plan.choices:
        console.print(Text("Chosen for this machine (--dry-run says why):", "dim"), soft_wrap=True)
        for choice in plan.choices:
            console.print(Text(f"  {choice.key} {choice.value}", "dim"), soft_wrap=True)
    for remark in plan.remarks:
        console.print(Text(f"Note: {remark}", "yellow"), soft_wrap=True)
    run = partial(_launch, reached=reached, too_long=plan.too_long)
    return run_to_end(run, accepted.recipe, folder, console, before=reached.summary if reached else None)


def _launch(recipe: Recipe, folder: RunFolder, view: LiveView, reached: Reached | None, too_long: Sequence[TooLong]) -> Summary:
    from asyncrl.run.launch import launch

    return launch(recipe, folder, view, reached, too_long)[0]


def _show(recipe: Recipe, plan: Plan, console: Console) -> None:
    from asyncrl.planning.dry_run import expected
    from asyncrl.run.folder.config_yaml import resolved_yaml
    from asyncrl.run.plan.plan_view import plan_view

    console.print(resolved_yaml(recipe), markup=False, soft_wrap=True)
    console.print(plan_view(plan, recipe))
    if (sentence := expected(recipe)) is not None:
        console.print(Text(sentence[0].upper() + sentence[1:]), soft_wrap=True)
