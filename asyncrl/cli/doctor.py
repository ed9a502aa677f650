"""``asyncrl doctor``: says what this machine lacks for a run, and what would mend it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.text import Text

from asyncrl.cli.arguments import command
from asyncrl.cli.outcome import ExitCode

if TYPE_CHECKING:
    from asyncrl.cli.arguments import Commands
    from asyncrl.core.recipe.schema import ModelConfig

_DESCRIPTION = """\
Look at this machine: Python and packages against the ranges that asyncrl
declares, GPUs, NCCL, TransformerEngine, attention, shared memory, file
descriptors, ports, clock, folders and Ray, and with --model at a model's
architecture and chat template. Each finding comes with its remedy. Changes
nothing. Exits with 1 if there is a problem."""

_STYLES = {"fine": "green", "note": "yellow", "problem": "bold red"}


def add_command(commands: Commands) -> None:
    """Add the command ``doctor``."""
    parser = command(commands, "doctor", "say what this machine lacks", _DESCRIPTION, run)
    parser.add_argument("--model", metavar="FOLDER", type=Path, help="look at the model in this Hugging Face folder, too")
    parser.add_argument("--chat-template", metavar="FILE", help="look at the model with this template, as model.chat_template")
    kwargs_help = "and with these values, as model.chat_template_kwargs, e.g. '{\"enable_thinking\": false}'"
    parser.add_argument("--chat-template-kwargs", metavar="JSON", type=_json_object, default={}, help=kwargs_help)
    parser.add_argument("--run-dir", metavar="FOLDER", type=Path, default=Path("runs"), help="where runs will be (default runs)")
    parser.add_argument("--json", action="store_true", help="print the findings as a JSON list")


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Make all checks and show what they find."""
    from asyncrl.run.doctor.examine import examine, is_healthy

    findings = []
    for finding in examine(arguments.run_dir, _looked_at(arguments)):
        findings.append(finding)
        if not arguments.json:
            console.print(
                Text.assemble((f"{finding.level:8}", _STYLES[finding.level]), f"{finding.topic}: {finding.found}"), soft_wrap=True
            )
            if finding.remedy:
                console.print(Text(f"         {finding.remedy}", "dim"), soft_wrap=True)
    if arguments.json:
        console.print(msgspec.json.format(msgspec.json.encode(findings)).decode(), markup=False, highlight=False, soft_wrap=True)
    return ExitCode.COMPLETED if is_healthy(findings) else ExitCode.FAILED


def _looked_at(arguments: argparse.Namespace) -> ModelConfig | None:
    """Return the model to look at, as a recipe would have it; None if none is named.

    Raises:
        RecipeError: the template that is named cannot be read.
    """
    from asyncrl.core.recipe.schema import ModelConfig
    from asyncrl.run.models.template_facts import template_text

    if arguments.model is None:
        return None
    template = None if arguments.chat_template is None else template_text(arguments.chat_template)
    return ModelConfig(path=str(arguments.model), chat_template=template, chat_template_kwargs=arguments.chat_template_kwargs)


def _json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object: {error}") from error
