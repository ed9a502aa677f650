"""``asyncrl export``: writes a policy version of a run as a Hugging Face folder."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from asyncrl.cli.arguments import command, run_to_read, whole_number
from asyncrl.cli.outcome import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands

_DESCRIPTION = """\
Write a policy version of a run as a Hugging Face folder, with tokenizer and
configuration. There are the version that the run began with (0), one for each
checkpoint, and the trained model. Adapters are merged into the weights."""

_EXAMPLES = """\
examples:
  asyncrl export runs/NAME-TIME --to my-model       the newest version
  asyncrl export runs/NAME-TIME --version 20 --to version-20"""


def add_command(commands: Commands) -> None:
    """Add the command ``export``."""
    summary = "write a run's policy version as a Hugging Face folder"
    parser = command(commands, "export", summary, _DESCRIPTION, run, starts=True, epilog=_EXAMPLES)
    parser.add_argument("folder", metavar="RUN", type=partial(run_to_read, weights=True), help="the folder of a run")
    parser.add_argument("--version", metavar="N", type=whole_number, help="the policy version; without it, the newest")
    parser.add_argument("--to", metavar="FOLDER", type=Path, required=True, help="the folder to make")


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Export the version, and say where it is."""
    from asyncrl.run.evaluation.found_model import find_model
    from asyncrl.run.evaluation.version_export import export_version
    from asyncrl.run.folder.run_folder import RunFolder
    from asyncrl.run.views.live_view import LiveView

    folder = arguments.to.absolute()
    model = find_model(str(RunFolder.find(arguments.folder).path), arguments.version)
    with LiveView(console, model.name) as view:
        export_version(model, folder, view)
    console.print(Text(f"{model.name}: {arguments.to}"), soft_wrap=True)
    return ExitCode.COMPLETED
