"""``asyncrl env play``: a person, or a file, is the model.

What always holds: the environment is played with the limits of its recipe, and sees what a model's turn would be.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from asyncrl.authoring.calls import read_turn
from asyncrl.authoring.subject import Subject, tasks_of
from asyncrl.core.errors import RecipeError
from asyncrl.core.messages import MalformedCall, Message, ToolSpec
from asyncrl.core.task import Task
from asyncrl.core.text import pluralize
from asyncrl.envs.hosting.hosted import HostedEnvironment
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.envs.hosting.worker_environments import WorkerEnvironments
from asyncrl.envs.load import load_members
from asyncrl.envs.secrets import read_secrets
from asyncrl.envs.signature import SchemaParameters
from asyncrl.episodes.visible import visible
from asyncrl.generators.episode import MALFORMED_PENALTY, EpisodeLimits, checked_reset, checked_step, malformed_calls
from asyncrl.generators.tool_output import cut_tool_outputs

CLOSE_S = 10.0
HELP = (
    'Write a call as name(argument="value") or {"name": ..., "arguments": {...}}. End a line with \\ to go on with the turn in '
    "the next, for several calls. All else is the answer. Ctrl-D ends."
)

Turns = Callable[[], str | None]
"""Gives the text of the next turn; None if there is none."""


def find_task(subject: Subject, split: str, wanted: str) -> Task:
    """Find a task by its id or by its number in a split.

    Raises:
        RecipeError: there is no such task.
    """
    tasks = tasks_of(subject, split)
    for task in tasks:
        if task.id == wanted:
            return task
    if wanted.isascii() and wanted.isdigit() and int(wanted) < len(tasks):
        return tasks[int(wanted)]
    raise RecipeError("--task", f"there is no {split} task {wanted!r}", f"give a number below {len(tasks)}, or an id")


def turns_of_file(file: Path) -> Turns:
    """The turns in a file: one a line, going on after a ``\\`` at its end.

    Raises:
        RecipeError: it cannot be read.
    """
    try:
        with file.open(encoding="utf-8-sig") as written:
            lines = iter([line.removesuffix("\n") for line in written])
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            "--script", f"{str(file)!r} cannot be read: {error}", "name a text file with a turn in each line"
        ) from error
    return lambda: _joined(lines)


def all_turns_of(file: Path) -> list[str]:
    """The turns in a file, of which there is at least one; see :func:`turns_of_file`.

    Raises:
        RecipeError: it cannot be read, or is empty.
    """
    next_turn = turns_of_file(file)
    turns = list(iter(next_turn, None))
    if not turns:
        raise RecipeError("--script", f"{str(file)!r} is empty", "write a turn in each line")
    return [turn for turn in turns if turn is not None]


def turns_of_terminal(ask: Callable[[str], str]) -> Turns:
    """The turns that a person types; ``ask`` shows a prompt and returns a line, or raises ``EOFError``."""

    def lines() -> Iterator[str]:
        while True:
            try:
                yield ask("> ")
            except EOFError:
                return

    typed = lines()
    return lambda: _joined(typed)


def _joined(lines: Iterator[str]) -> str | None:
    turn: list[str] = []
    for line in lines:
        if not line.endswith("\\"):
            return "\n".join((*turn, line))
        turn.append(line[:-1])
    return "\n".join(turn) if turn else None


def play(subject: Subject, task: Task, turns: Turns, console: Console) -> float | None:
    """Play one episode, and return its reward; None if it was left before its end.

    Raises:
        EnvironmentBroken: a method of the environment raised or returned something invalid.
    """
    return asyncio.run(_play(subject, task, turns, console))


async def _play(subject: Subject, task: Task, turns: Turns, console: Console) -> float | None:
    recipe = subject.recipe
    environments = WorkerEnvironments(load_members(recipe.environment), read_secrets(recipe.environment, os.environ), "play")
    limits = EpisodeLimits.of(recipe, subject.member)
    await environments.start(recipe.deadlines.start)
    try:
        environment = HostedEnvironment(environments.make(task), task)
        try:
            return await _episode(environment, limits, turns, console)
        finally:
            await environment.close(limits.close_timeout_s)
    finally:
        await environments.close(CLOSE_S)


async def _episode(environment: HostedEnvironment, limits: EpisodeLimits, turns: Turns, console: Console) -> float | None:
    await environment.ready()
    observation = await checked_reset(environment)
    _show_tools(observation.tools, console)
    _show(observation.messages, console)
    total, calls = 0.0, 0
    metrics: dict[str, float] = {} if limits.malformed_penalty is None else {MALFORMED_PENALTY: 0.0}
    for number in range(1, limits.max_turns + 1):
        text = await run_in_daemon_thread(turns, "reading a turn")
        if text is None:
            console.print(Text("left before its end", "dim"))
            return None
        action = read_turn(text, observation.tools)
        for call in action.calls:
            shown = f"malformed: {call.problem}" if isinstance(call, MalformedCall) else f"calls {call.name}({call.arguments})"
            console.print(Text(f"  {shown}", "dim"))
        calls += len(action.calls)
        if limits.max_calls is not None and calls > limits.max_calls:
            _show_end(f"environment.max_calls = {limits.max_calls} reached, so this turn is not run", total, metrics, console)
            return total
        result = await checked_step(environment, action)
        reward = result.reward
        if limits.malformed_penalty is not None:
            penalty = limits.malformed_penalty * malformed_calls(action, result)
            reward -= penalty
            metrics[MALFORMED_PENALTY] -= penalty
        for metric, value in result.metrics.items():
            metrics[metric] = metrics.get(metric, 0.0) + value
        messages, _ = cut_tool_outputs(result.observation.messages, limits.max_tool_output)
        _show(messages, console)
        total += reward
        if reward or result.done:
            console.print(Text(f"  reward of the turn: {reward:g}", "dim"))
        if result.fault is not None:
            console.print(Text(f"  fault: {visible(str(result.fault))}", "yellow"))
        if result.done or result.fault in limits.end_on:
            _show_end(f"done after {pluralize(number, 'turn')}", total, metrics, console)
            return total
    _show_end(f"environment.max_turns = {limits.max_turns} reached", total, metrics, console)
    return total


def _show_end(how: str, reward: float, metrics: Mapping[str, float], console: Console) -> None:
    """Show how an episode ended, and the sums of all its turns."""
    console.print(Text.assemble(("end", "bold"), f": {how}"))
    sums = ", ".join(f"{name} {value:g}" for name, value in metrics.items())
    console.print(Text.assemble(f"  reward of all turns: {reward:g}", (f" ({sums})" if sums else "", "dim")))


def _show_tools(tools: Sequence[ToolSpec], console: Console) -> None:
    for tool in tools:
        console.print(Text.assemble((SchemaParameters(tool).usage, "cyan"), f"  {tool.description}"))
    console.print(Text(HELP, "dim"), soft_wrap=True)


def _show(messages: Sequence[Message], console: Console) -> None:
    for message in messages:
        console.print(Text.assemble((f"{message.role}: ", "bold"), visible(message.content)))
