"""``asyncrl launch``: checks a recipe and runs it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from asyncrl.cli.arguments import command
from asyncrl.cli.console import say
from asyncrl.cli.jobs.options import add_job_options, is_job, run_job
from asyncrl.cli.outcome import ExitCode, run_to_end
from asyncrl.core.files.file_errors import refusing
from asyncrl.core.text import as_the_program_names, without_passwords

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands
    from asyncrl.core.recipe.schema import Recipe
    from asyncrl.run.dry_run.plan import Plan
    from asyncrl.run.dry_run.prompt_lengths import TooLong
    from asyncrl.run.folder.run_folder import RunFolder
    from asyncrl.run.measures.summary import Summary
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
  asyncrl launch --resume s3://BUCKET/runs/NAME-TIME  on any machine

Every key, its range and its default: docs/reference/recipe.md."""


def add_command(commands: Commands) -> None:
    """Add the command ``launch``."""
    parser = command(commands, "launch", "run a recipe", _DESCRIPTION, run, starts=True, epilog=_EXAMPLES)
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
        help="go on with the run in this folder, or at this address of an object store, by its own recipe and these changes",
    )
    parser.add_argument(
        "--from",
        dest="start",
        metavar="FOLDER",
        type=Path,
        help="where relative paths of a resumed run's recipe begin, if its project has moved; else where it was launched",
    )
    parser.add_argument(
        "-d", "--detach", action="store_true", help="leave the run to itself once it has begun; see asyncrl attach"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show only warnings, and how it ended")
    parser.add_argument("--tag", metavar="TAG", action="append", default=[], help="a word that asyncrl runs finds it by")
    parser.add_argument("--note", metavar="TEXT", default="", help="what the run is for")
    add_job_options(parser)
    parser.set_defaults(parser=parser)


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Compose the recipe, check it, and launch it unless this is a dry run."""
    if arguments.resume is not None and arguments.recipe is not None and is_override(arguments.recipe):
        arguments.overrides.insert(0, arguments.recipe)
        arguments.recipe = None
    if is_job(arguments) and arguments.recipe is not None:
        return run_job(arguments, console)
    if (arguments.recipe is None) == (arguments.resume is None):
        arguments.parser.error("give either a RECIPE, or --resume RUN without one: a resumed run has its own recipe")
    if arguments.start is not None:
        arguments.start = arguments.start.resolve()  # before the current folder is another one
    if arguments.resume is None:
        if arguments.start is not None:
            arguments.parser.error("--from goes with --resume: the paths of a new run begin in the current folder")
        return _run(arguments, console, None)
    from asyncrl.run.folder.run_folder import in_launch_directory
    from asyncrl.run.storage.fetched_run import resumed_run

    with (
        resumed_run(arguments.resume, say, to_look=arguments.dry_run) as found,
        in_launch_directory(found, arguments.start),
    ):
        return _run(arguments, console, found.path)


def _run(arguments: argparse.Namespace, console: Console, resume: Path | None) -> ExitCode:
    """Do :func:`run` for a new run, or for the run in the folder ``resume``."""
    check_tags(arguments.tag)
    if arguments.detach and not arguments.dry_run:
        return _detach(arguments, console, resume)
    accepted = accept(arguments.recipe, arguments.overrides, resume)
    if arguments.dry_run:
        asked = arguments.recipe if resume is None else str(resume / "recipe.yaml")
        _show(accepted.recipe, accepted.plan, [asked, *arguments.overrides], console)
        say("The recipe can be launched; nothing was started.")
        return ExitCode.COMPLETED
    folder = accepted.make_folder(arguments.folder_name)
    label(folder, arguments.recipe or "", arguments.overrides, arguments.tag, arguments.note)
    return start(accepted, folder, console, quiet=arguments.quiet)


def _detach(arguments: argparse.Namespace, console: Console, resume: Path | None) -> ExitCode:
    """Start the run in a process of its own, and return once it has begun.

    Raises:
        RecipeError: the process refused it after all.
    """
    from asyncrl.cli.driving.messages import LaunchRequest
    from asyncrl.cli.driving.start import start_detached

    request = LaunchRequest(
        arguments.recipe,
        tuple(arguments.overrides),
        resume=None if resume is None else str(resume),
        start=None if arguments.start is None else str(arguments.start),
        named=arguments.recipe or "",
        tags=tuple(arguments.tag),
        note=arguments.note,
        detached=True,
        quiet=arguments.quiet,
    )
    folder = start_detached(request)
    console.print(Text(f"The run goes on by itself: {folder}"), soft_wrap=True)
    for what in ("attach", "stop", "logs -f"):
        console.print(Text(f"  asyncrl {what} {folder}", "dim", no_wrap=True), soft_wrap=True)
    return ExitCode.COMPLETED


def check_tags(tags: Sequence[str]) -> None:
    """Raise ``RecipeError`` if one of the tags is none."""
    from asyncrl.run.folder.labels import Labels

    Labels().with_tags(tags)


def label(folder: RunFolder, recipe: str, overrides: Sequence[str], tags: Sequence[str], note: str) -> None:
    """Note how a run was launched, with tags and a note of the user's; a resumed run keeps what it has.

    Raises:
        RecipeError: a tag is none, what the run has cannot be read, or the folder cannot be written to.
    """
    from asyncrl.run.folder.labels import Labels, change_labels

    def changed(known: Labels) -> Labels:
        before = known.recipe or known.overrides
        shown = tuple(map(without_passwords, overrides))
        earlier = tuple(each for each in known.overrides if each not in shown)  # a command may be repeated again and again
        return Labels(known.recipe if before else recipe, (*earlier, *shown), known.tags, note or known.note).with_tags(tags)

    with refusing(f"write {str(folder.labels)!r}", "make it writable"):
        change_labels(folder.labels, changed)


def is_override(word: str) -> bool:
    """Whether a word of the command line changes a recipe instead of naming one."""
    return not os.path.exists(word) and ("=" in word or word[:1] in ("~", "+"))


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

    def make_folder(self, name: str | None = None) -> RunFolder:
        """Return the run's folder; that of a new run is made now, with this name if one is given.

        Raises:
            RecipeError: it cannot be made.
        """
        from asyncrl.run.folder.run_folder import RunFolder

        return self.resumed or RunFolder.create(self.recipe, name)


def accept(recipe: str | None, overrides: Sequence[str], resume: Path | None) -> Accepted:
    """Check the recipe, or the run to resume, without starting or changing anything.

    Raises:
        RecipeError: it cannot be run.
    """
    import msgspec

    from asyncrl.run.buffer.tasks import with_pinned_data_sets
    from asyncrl.run.dry_run.plan import make_plan
    from asyncrl.run.folder.run_folder import RunFolder
    from asyncrl.run.host.notification import check_notification
    from asyncrl.run.host.system_limits import check_limits
    from asyncrl.run.nodes.machine import Machine

    # Only Hydra and the environment's own module are imported here; Ray and the engines wait until the recipe is accepted.
    from asyncrl.run.recipe.compose import compose_for
    from asyncrl.run.resume import check_changes, check_resumable
    from asyncrl.run.storage.fetched_run import settle
    from asyncrl.run.storage.upload_places import check_not_elsewhere

    check_limits()
    found = RunFolder.find(resume) if resume else None
    if found is not None:
        check_changes(overrides)
    machine = Machine.for_runs()
    composed, choices = compose_for(machine, str(found.recipe) if found else str(recipe), overrides)
    if found is None:
        composed = with_pinned_data_sets(composed)
    plan = make_plan(composed, machine, choices, say, found.path if found else None)
    check_notification(composed.notify, os.environ)
    if found is None:
        return Accepted(composed, plan, None, None)
    check_not_elsewhere(composed, found)
    settle(composed, found)
    reached = check_resumable(composed, found)
    return Accepted(composed, plan, found, msgspec.structs.replace(reached, changed=bool(overrides)))


def start(accepted: Accepted, folder: RunFolder, console: Console, *, quiet: bool = False) -> ExitCode:
    """Run to the end, and show what was chosen before and how it ended after; if ``quiet``, only warnings and one line."""
    from asyncrl.run.host.system_limits import allow_open_files

    allow_open_files()
    plan, reached = accepted.plan, accepted.reached
    if plan.choices and not quiet:
        console.print(Text("Chosen for this machine (--dry-run says why):", "dim"), soft_wrap=True)
        for choice in plan.choices:
            console.print(Text(f"  {choice.key} {choice.value}", "dim"), soft_wrap=True)
    for remark in plan.remarks:
        console.print(Text(f"Note: {as_the_program_names(remark)}", "yellow"), soft_wrap=True)
    run = partial(_launch, reached=reached, too_long=plan.too_long)
    return run_to_end(run, accepted.recipe, folder, console, before=reached.summary if reached else None, quiet=quiet)


def _launch(recipe: Recipe, folder: RunFolder, view: LiveView, reached: Reached | None, too_long: Sequence[TooLong]) -> Summary:
    from asyncrl.run.launch import launch

    return launch(recipe, folder, view, reached, too_long)[0]


def _show(recipe: Recipe, plan: Plan, asked: Sequence[str], console: Console) -> None:
    from asyncrl.planning.similar_runs import expected
    from asyncrl.run.dry_run.plan_view import plan_view
    from asyncrl.run.folder.config_yaml import resolved_yaml

    console.print(without_passwords(resolved_yaml(recipe)), markup=False, soft_wrap=True)
    console.print(plan_view(plan, recipe))
    if (sentence := expected(recipe, asked)) is not None:
        console.print(Text(sentence[0].upper() + sentence[1:]), soft_wrap=True)
