"""``asyncrl chat``: talks to a model in the terminal, with an environment's tools in place; and ``asyncrl serve``."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from asyncrl.cli.arguments import command, whole_number
from asyncrl.cli.console import say
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from asyncrl.cli.arguments import Commands
    from asyncrl.run.serving.conversation import Conversation, MakeEnvironment
    from asyncrl.run.serving.served_model import ServedModel
    from asyncrl.run.serving.server import Address

_CHAT = """\
Talk to a run's model, or to any other, in the terminal. With --environment its
tools are in place: what you write is the task, and the model calls tools as in a
run. A turn without calls is yours to judge: no reward is computed. /new begins
anew, Ctrl-D ends."""

_SERVE = """\
Serve a run's newest version, or any other model, by vLLM's OpenAI server, whose
calls of tools are read as in training. With --print, only the command line is
shown, to be used elsewhere. The server's key is taken from VLLM_API_KEY."""

START_S = 600.0
"""How long vLLM's server may take to start."""


def add_command(commands: Commands) -> None:
    """Add the commands ``chat`` and ``serve``."""
    parser = command(commands, "chat", "talk to a model, with tools in place", _CHAT, run_chat)
    _add_model(parser)
    parser.add_argument("--environment", metavar="ENVIRONMENT", help="a recipe, `module:Class`, or a built-in environment")
    parser.add_argument(
        "--url",
        metavar="URL",
        help="of a server that serves the model by this name, such as asyncrl serve; VLLM_API_KEY has its key",
    )
    parser.add_argument("--temperature", metavar="T", type=float, default=0.7, help="0 is greedy (default 0.7)")
    parser = command(commands, "serve", "serve a model by vLLM's OpenAI server", _SERVE, run_serve)
    _add_model(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1: this machine only)")
    parser.add_argument("--port", type=_port, default=8000, help="port to listen at (default 8000)")
    parser.add_argument("--print", dest="only_print", action="store_true", help="show the command line, and start nothing")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="a run's folder, a Hugging Face folder, a model of the hub, or `tiny`")
    parser.add_argument("--version", metavar="N", type=whole_number, help="the policy version of a run; without it, the newest")


def _port(text: str) -> int:
    return whole_number(text, 1, 65_535)


def run_serve(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Run vLLM's server until it ends."""
    from asyncrl.run.serving.served_model import served_model
    from asyncrl.run.serving.server import started
    from asyncrl.run.views.live_view import LiveView

    with LiveView(console, arguments.model, quiet=True) as view, served_model(arguments.model, arguments.version, view) as model:
        where = ("--host", arguments.host, "--port", str(arguments.port))
        elsewhere = shlex.join(["vllm", *model.arguments(), *where])
        if arguments.only_print:
            if model.is_temporary:
                problem = f"{model.name} is a checkpoint, of which this command makes a folder for itself alone"
                raise RecipeError("--print", problem, "write it as a folder with asyncrl export, and serve that")
            console.print(Text(elsewhere, no_wrap=True), soft_wrap=True)
            return ExitCode.COMPLETED
        say(f"Serving {model.name} at http://{arguments.host}:{arguments.port}/v1; elsewhere: {elsewhere}")
        with started(model, arguments.host, arguments.port) as server:
            code = server.wait()
    return ExitCode.COMPLETED if code == 0 else ExitCode.FAILED


def run_chat(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Serve the model to this process alone, and talk to it."""
    import asyncio
    import readline  # noqa: F401, so that arrow keys move within a line and bring earlier lines back

    from asyncrl.run.serving.served_model import served_model
    from asyncrl.run.views.live_view import LiveView

    if arguments.url is not None and arguments.version is not None:
        problem = f"a server has loaded what it was started with, which need not be version {arguments.version}"
        raise RecipeError("--version", problem, "leave out --version, or --url")
    with ExitStack() as stack:
        model = None
        if arguments.url is None:  # before there is an event loop: making the model's folder runs one of its own
            view = stack.enter_context(LiveView(console, arguments.model, quiet=True))
            model = stack.enter_context(served_model(arguments.model, arguments.version, view))
        stack.enter_context(_terminal_as_before())
        asyncio.run(_chat(model, arguments, console))
    return ExitCode.COMPLETED


@contextmanager
def _terminal_as_before() -> Iterator[None]:
    """Leave the terminal as it was: an interrupt ends the command while readline has changed it."""
    if not sys.stdin.isatty():
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


async def _chat(model: ServedModel | None, arguments: argparse.Namespace, console: Console) -> None:
    import aiohttp

    from asyncrl.run.serving.conversation import CONNECT_S, SILENT_S, Conversation

    async with AsyncExitStack() as stack:
        made = None if arguments.environment is None else await _environment(arguments.environment, stack)
        address, name, sampling = await _server(model, arguments, stack)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        sampling["temperature"] = arguments.temperature
        make, max_turns = made or (None, 1)
        conversation = Conversation(http, address, name, make, max_turns, sampling)
        stack.push_async_callback(conversation.begin_anew)
        await _talk(conversation, console)


async def _server(
    model: ServedModel | None, arguments: argparse.Namespace, stack: AsyncExitStack
) -> tuple[Address, str, dict[str, Any]]:
    """Return where a model answers, by what name, and how it is sampled; a server is started for ``model``."""
    from asyncrl.run.serving.served_model import KEY_VARIABLE
    from asyncrl.run.serving.server import Address, serving

    if model is None:
        return Address(arguments.url, os.environ.get(KEY_VARIABLE, "")), arguments.model, {}
    log = Path(tempfile.gettempdir()) / f"asyncrl-chat-{os.getpid()}.log"
    say(f"Starting vLLM with {model.name} ...")
    address = await stack.enter_async_context(serving(model, log, START_S))
    stack.callback(lambda: log.unlink(missing_ok=True))  # where it has failed, the error names it
    return address, model.name, {"max_tokens": model.recipe.sampling.max_turn_tokens} if model.trained else {}


async def _environment(named: str, stack: AsyncExitStack) -> tuple[MakeEnvironment, int]:
    """Set up an environment, and return what makes the one of an episode, and its limit of turns."""
    from asyncrl.authoring.subject import compose_for_author, subject_named
    from asyncrl.envs.hosting.hosted import HostedEnvironment
    from asyncrl.envs.hosting.worker_environments import WorkerEnvironments
    from asyncrl.envs.load import load_members
    from asyncrl.envs.secrets import read_secrets

    recipe = compose_for_author(named, [])
    subject = subject_named(recipe, None)
    environments = WorkerEnvironments(load_members(recipe.environment), read_secrets(recipe.environment, os.environ), "chat")
    await environments.start(recipe.deadlines.start)
    stack.push_async_callback(environments.close, 10.0)
    return (lambda task: HostedEnvironment(environments.make(task), task)), subject.spec.max_turns


async def _talk(conversation: Conversation, console: Console) -> None:
    """Let a person and the model speak in turn."""
    from asyncrl.core.errors import ComponentFailed, EnvironmentBroken
    from asyncrl.envs.hosting.threads import run_in_daemon_thread

    while True:
        try:
            text = (await run_in_daemon_thread(lambda: input("> "), "reading a line")).strip()
        except EOFError:
            console.print()
            return
        if not text:
            continue
        if text == "/new":
            await conversation.begin_anew()
            say("begun anew")
            continue
        try:
            await _answer(conversation, text, console)
        except (ComponentFailed, EnvironmentBroken) as error:
            console.print(Text(str(error), "red"), soft_wrap=True)
            await conversation.begin_anew()


async def _answer(conversation: Conversation, text: str, console: Console) -> None:
    """Show what the model and the tools say to one message."""
    from asyncrl.episodes.visible import visible
    from asyncrl.run.serving.conversation import Called, Cut, Over, Said, ToolSaid

    within = False
    async for piece in conversation.say(text):
        if within and not isinstance(piece, Said):
            console.print()
        within = isinstance(piece, Said)
        match piece:
            case Said(text=said, thought=thought):
                console.print(Text(visible(said), "dim italic" if thought else ""), end="", soft_wrap=True)
            case Called(name=name, arguments=arguments):
                console.print(Text(f"  calls {visible(name)}({visible(arguments)})", "cyan"), soft_wrap=True)
            case ToolSaid(message=message):
                console.print(Text(f"  {message.role}: {visible(message.content)}", "dim"), soft_wrap=True)
            case Over(why=why) | Cut(why=why):
                console.print(Text(f"  ({why})", "yellow"), soft_wrap=True)
    if within:
        console.print()
