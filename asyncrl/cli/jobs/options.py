"""The options of ``asyncrl launch`` by which a run has a fixed name, is tried again, and goes to a cluster as a job."""

from __future__ import annotations

import argparse
import re
import secrets
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from asyncrl.cli.arguments import whole_number
from asyncrl.cli.console import say
from asyncrl.cli.outcome import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--as",
        dest="named",
        metavar="NAME",
        type=_name,
        help="the run of this name: launched if there is none yet, gone on with if there is; so the command may be repeated",
    )
    parser.add_argument(
        "--retries",
        metavar="N",
        type=whole_number,
        help="with --as: go on after as many failures in a row without a new checkpoint (3 with --submit, else 0)",
    )
    parser.add_argument("--folder-name", type=_name, help=argparse.SUPPRESS)  # how --as launches
    parser.add_argument(
        "--submit", metavar="URL", help="as a job of the Ray cluster whose dashboard is there, e.g. http://HEAD:8265"
    )


def is_job(arguments: argparse.Namespace) -> bool:
    """Whether one of the options is given; what does not go together is a usage error."""
    given = arguments.named is not None or arguments.submit is not None
    if arguments.retries is not None and not given:
        arguments.parser.error("--retries goes with --as NAME or --submit: what is tried again has a name")
    if given and (arguments.resume is not None or arguments.dry_run or arguments.detach):
        arguments.parser.error("--as and --submit go with a RECIPE, and with none of --resume, --dry-run and --detach")
    return given


def run_job(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Submit the run, or drive the run of that name until it has completed.

    Raises:
        RecipeError: it is refused.
    """
    from asyncrl.run.folder.config_yaml import resolved_yaml
    from asyncrl.run.jobs.attempts import NamedRun, keep_at_it
    from asyncrl.run.jobs.submission import submit, submittable
    from asyncrl.run.nodes.machine import Machine
    from asyncrl.run.recipe.compose import compose, compose_for

    if arguments.submit is not None:
        from asyncrl.run.host.brought_folder import folder_to_bring

        recipe = compose(arguments.recipe, arguments.overrides)
        source = submittable(recipe, arguments.recipe)
        name = arguments.named or f"{recipe.name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        retries = 3 if arguments.retries is None else arguments.retries
        options = (*_passed_on(arguments), "--as", name, "--retries", str(retries))
        words = ("launch", source, *arguments.overrides, *options)
        folder = folder_to_bring(Path.cwd(), resolved_yaml(recipe))
        job = submit(arguments.submit, name, words, folder)
        if folder.links:
            say(f"{folder.path} goes with the job{folder.without_links}")
        run = NamedRun(recipe, name)
        console.print(Text(f"Submitted: {name}"), soft_wrap=True)
        place = run.address or run.folder.path
        stop = f"asyncrl stop {place}" if run.address is not None else f"ray job stop --address {arguments.submit} {job}"
        for what in (f"asyncrl logs {place}", stop):
            console.print(Text(f"  {what}", "dim"), soft_wrap=True)
        return ExitCode.COMPLETED
    recipe = compose_for(Machine.for_runs(), arguments.recipe, arguments.overrides)[0]
    run = NamedRun(recipe, arguments.named)
    if run.has_completed(recipe.steps):
        say(f"The run {arguments.named} has completed its {recipe.steps} training steps")
        return ExitCode.COMPLETED
    further = [each for each in arguments.overrides if not _is_length(each)]
    if further and (begun := run.place) is not None:
        say(f"The run goes on from {begun} by the recipe that it has there, whatever {' '.join(further)} says")
    code = keep_at_it(run, partial(_command, arguments), arguments.retries or 0, say)
    return ExitCode(code) if code in set(ExitCode) else ExitCode.FAILED


def _passed_on(arguments: argparse.Namespace) -> list[str]:
    """The words by which tags, note and quietness are passed on."""
    tags = [word for tag in arguments.tag for word in ("--tag", tag)]
    return [*tags, *(("--note", arguments.note) if arguments.note else ()), *(("--quiet",) if arguments.quiet else ())]


def _command(arguments: argparse.Namespace, place: str | None) -> list[str]:
    """The command that launches the run, or goes on with it; all but its length the run's own recipe says by then."""
    overrides, launch = arguments.overrides, [sys.executable, "-P", "-m", "asyncrl.cli.main", "launch"]
    if place is None:
        return [*launch, arguments.recipe, *overrides, *_passed_on(arguments), "--folder-name", arguments.named]
    # Here, and not where it was launched: of a job that was submitted before, the cluster still has the folder as it was then.
    return [*launch, "--resume", place, "--from", str(Path.cwd()), *filter(_is_length, overrides), *_passed_on(arguments)]


def _is_length(override: str) -> bool:
    return override.startswith("steps=")


def _name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} must be letters, digits, dots, dashes and underscores")
    return text
