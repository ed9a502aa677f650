"""``asyncrl agent``: tools for people who train within agents of theirs."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.cli.arguments import command, count, writable_file
from asyncrl.cli.console import say
from asyncrl.cli.outcome import ExitCode
from asyncrl.cli.written_file import write_json

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands

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

_REPLAY = """\
Serve the kept traffic of an episode to its agent again, offline: without a
GPU, a model or a network. The agent is started as it was in the run, with the
same task, variables and working directory, and gets for each request the
answer that was kept for it. The replay stops at the first request that differs
in what bears on its answer, and says how; an agent that hangs is killed at the
recipe's episode_timeout_s. Traffic is kept with the episodes
that tracking.trajectories keeps, if the recipe has environment.keep_traffic.
The exit code is 0 if the agent asked for all that it had asked for and for
nothing else, else 1."""

_REPLAY_EXAMPLES = """\
examples:
  asyncrl agent replay RUN 17/2 -- python /home/me/solve.py
  asyncrl agent replay RUN train-3 -- python /home/me/solve.py    the newest one of this task"""


def add_command(commands: Commands) -> None:
    """Add the command ``agent``."""
    parser = commands.add_parser(
        "agent", help="check agents before a run, and replay them", description="Train within agents of your own."
    )
    kinds = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    check = command(kinds, "check", "find what training within an agent will cost", _CHECK, run_check, starts=True)
    check.add_argument("recipe", metavar="RECIPE", help="a .yaml file, or the name of a shipped recipe")
    check.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="changes of the recipe")
    check.add_argument("--episodes", metavar="N", type=count, default=3, help="episodes of each agent (default 3)")
    check.add_argument("--script", metavar="FILE", type=Path, help="read the answers from there")
    check.add_argument("--json", metavar="FILE", type=writable_file, help="also write what was found there")
    replayed = command(
        kinds, "replay", "serve an agent its kept traffic", _REPLAY, run_replay, starts=True, epilog=_REPLAY_EXAMPLES
    )
    replayed.add_argument("folder", metavar="RUN", type=Path, help="the run's folder")
    replayed.add_argument("episode", metavar="EPISODE", help="GROUP/SAMPLE, as `asyncrl show` has them, or the id of a task")
    replayed.add_argument("command", metavar="COMMAND", nargs="+", help="the agent's command line, after --")


def run_check(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Check the agents of a recipe."""
    from asyncrl.authoring.agents.agent_check import check_agents
    from asyncrl.authoring.agents.agent_check_view import agent_check_view
    from asyncrl.authoring.agents.scripted_policy import calling_each_tool, reading
    from asyncrl.authoring.env_play import all_turns_of
    from asyncrl.run.recipe.compose import compose

    recipe = compose(arguments.recipe, arguments.overrides)
    script = calling_each_tool if arguments.script is None else partial(reading, all_turns_of(arguments.script))
    checked = check_agents(recipe, script, arguments.episodes, say)
    for line in agent_check_view(checked):
        console.print(line, soft_wrap=True)
    if arguments.json is not None:
        write_json(arguments.json, checked)
    return ExitCode.FAILED if any(one.errors for one in checked) else ExitCode.COMPLETED


def run_replay(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Replay an agent."""
    import asyncio

    from asyncrl.authoring.agents.replay import replay
    from asyncrl.core.text import pluralize
    from asyncrl.episodes.kept_traffic import find_traffic
    from asyncrl.episodes.reader import EpisodeReader
    from asyncrl.generators.gateway.traffic import Traffic
    from asyncrl.run.folder.run_folder import RunFolder

    found = find_traffic(EpisodeReader(RunFolder.find(arguments.folder).trajectories), arguments.episode)
    say(f"replaying {found.name}")
    replayed = asyncio.run(replay(Traffic.read(found.traffic), arguments.command))
    answered = f"{pluralize(replayed.answered, 'request')} of {replayed.kept} answered as they were"
    if replayed.difference is not None:
        say(f"{answered}; the next one differs. {replayed.difference}")
    elif replayed.overdue_s is not None:
        limit = f"environment.episode_timeout_s = {replayed.overdue_s:g} s"
        say(f"{answered}; then the agent neither ended nor asked for more, and was killed at {limit} of the run")
    elif not replayed.is_same:
        say(f"{answered}; then the agent ended, with exit status {replayed.status}")
    else:
        say(f"{answered}; the agent ended with exit status {replayed.status}")
    return ExitCode.COMPLETED if replayed.is_same else ExitCode.FAILED
