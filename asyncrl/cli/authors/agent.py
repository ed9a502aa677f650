"""``asyncrl agent``: tools for people who train within agents of theirs."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.cli.arguments import command, count, writable_file
from asyncrl.cli.console import say
from asyncrl.cli.outcome import ExitCode, show_refusal
from asyncrl.core.errors import RecipeError

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands, Run

_CHECK = """\
Play a few episodes of a recipe's agent against scripted answers, without a
GPU and without weights: the tokenizer, the template, the parsers and the
limits are the recipe's. Says which roles there are, what requests ask for in
vain, which share of the turns extends a trajectory, and for each turn that
does not, which message differs and how; and how many tokens the learner
computes for each that it trains. The scripted answers call the agent's tools
with made-up arguments, which the agent runs as it runs a model's; or they are
read from a file (--script), one turn in each line. The exit code is 0 if
there is no error, else 1."""


def add_command(commands: Commands) -> None:
    """Add the command ``agent``."""
    parser = commands.add_parser("agent", help="check agents before a run", description="Train within agents of your own.")
    kinds = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    check = command(kinds, "check", "find what training within an agent will cost", _CHECK, partial(_refusing, run_check))
    check.add_argument("recipe", metavar="RECIPE", help="a .yaml file, or the name of a shipped recipe")
    check.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="changes of the recipe")
    check.add_argument("--episodes", metavar="N", type=count, default=3, help="episodes of each agent (default 3)")
    check.add_argument("--script", metavar="FILE", type=Path, help="read the answers from there")
    check.add_argument("--json", metavar="FILE", type=writable_file, help="also write what was found there")


def _refusing(run: Run, arguments: argparse.Namespace, console: Console) -> ExitCode:
    try:
        return run(arguments, console)
    except RecipeError as error:
        return show_refusal(error)


def run_check(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Check the agents of a recipe."""
    import msgspec

    from asyncrl.authoring.agents.agent_check import check_agents
    from asyncrl.authoring.agents.agent_check_view import agent_check_view
    from asyncrl.authoring.agents.scripted_policy import calling_each_tool, reading
    from asyncrl.authoring.playing import all_turns_of
    from asyncrl.run.recipe.compose import compose

    recipe = compose(arguments.recipe, arguments.overrides)
    script = calling_each_tool if arguments.script is None else partial(reading, all_turns_of(arguments.script))
    checked = check_agents(recipe, script, arguments.episodes, say)
    for line in agent_check_view(checked):
        console.print(line, soft_wrap=True)
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(checked), indent=2) + b"\n")
    return ExitCode.FAILED if any(one.errors for one in checked) else ExitCode.COMPLETED
