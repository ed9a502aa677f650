"""``asyncrl env``: tools for people who write environments.

Environments are also served where torch, vLLM and Ray are not installed, so commands import what they need by themselves.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.text import Text

import asyncrl
from asyncrl.cli.arguments import command, count, whole_number, writable_file
from asyncrl.cli.console import say
from asyncrl.cli.outcome import ExitCode
from asyncrl.cli.written_file import write_json
from asyncrl.core.errors import RecipeError
from asyncrl.core.process.log_format import log_to
from asyncrl.envs.other_projects.sources import SOURCES, source_named

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands

_INIT = """\
Write a new folder with an environment that works, its test, and a recipe that
trains the tiny model on it: NAME/NAME.py, NAME/test_NAME.py, NAME/NAME.yaml."""

_CHECK = """\
Look at an environment without a trainer: its tools and their types, its tasks
(the same for the same seed, none in both splits), and its episodes: alone and
a hundred at once (ten if it runs in another process and is slow), with hostile
calls, cancelled in the middle. Finds blocking calls, shared state, what
close() leaves behind, rewards that never differ. With --model, or the model of
a recipe, also what its chat template makes of it. Every finding has its place
and remedy. The exit code is 0 if there is no error, else 1."""

_PLAY = """\
Be the model: type calls as name(argument="value") or as JSON, and the answer
as text. With --script, the turns are read from a file, one in each line."""

_EVAL = """\
Score a model on an environment's held-out tasks, as `asyncrl evaluate` does
for a recipe: a Hugging Face folder, a model of the hub, the folder of a run,
or `tiny`. The episodes are kept, and `asyncrl show` reads them."""

_SUBJECT = "`module:Class`, a built-in environment, or a recipe"


def add_command(commands: Commands) -> None:
    """Add the command ``env``."""
    parser = commands.add_parser(
        "env", help="begin, check, play, score and serve environments", description="Write environments."
    )
    kinds = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    init = command(kinds, "init", "write an environment to begin with", _INIT, run_init, starts=True)
    init.add_argument("name", metavar="NAME", type=Path, help="the new folder")
    check = command(kinds, "check", "find what would hurt a run", _CHECK, run_check, starts=True)
    _add_subject(check)
    check.add_argument("--model", metavar="MODEL", help="look at it through this model's chat template, too (else the recipe's)")
    check.add_argument("--json", metavar="FILE", type=writable_file, help="also write the findings there")
    play = command(kinds, "play", "be the model", _PLAY, run_play, starts=True)
    _add_subject(play)
    play.add_argument("--task", metavar="ID", default="0", help="id or number of the task (default 0)")
    play.add_argument("--split", choices=("train", "evaluation"), default="train", help="where the task is from (default train)")
    play.add_argument("--member", metavar="NAME", help="which environment of a mixture")
    play.add_argument("--script", metavar="FILE", type=Path, help="read the turns from there")
    _add_serve(kinds)
    score = command(kinds, "eval", "score a model", _EVAL, run_eval, starts=True)
    _add_subject(score)
    score.add_argument("--model", metavar="MODEL", required=True, action="append", help="may be given several times")
    score.add_argument("-n", metavar="N", type=count, help="tasks to play (default 200, or all that the files have)")
    score.add_argument("--samples", metavar="N", type=count, help="episodes of each task")
    score.add_argument("--version", metavar="N", type=whole_number, help="policy version of a run (default the newest)")
    score.add_argument("--json", metavar="FILE", type=writable_file, help="also write the scores there")


def _add_subject(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("environment", metavar="ENVIRONMENT", help=_SUBJECT)
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="changes of the recipe")


def run_init(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Write the files of a new environment."""
    from asyncrl.authoring.env_init import start

    folder: Path = arguments.name
    files = start(folder)
    console.print(Text(f"wrote {', '.join(str(file) for file in files)}"), soft_wrap=True)
    (recipe,) = (file for file in files if file.suffix == ".yaml")
    console.print(
        Text(f"next: cd {shlex.quote(str(folder))} && asyncrl env check {recipe.name} && asyncrl launch {recipe.name}"),
        soft_wrap=True,
    )
    return ExitCode.COMPLETED


def run_check(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Check an environment."""
    from asyncrl.authoring.check import check
    from asyncrl.authoring.check_view import check_view
    from asyncrl.authoring.subject import compose_for_author

    named, overrides = arguments.environment, arguments.overrides
    checked = check(compose_for_author(named, overrides), arguments.model, say)
    for line in check_view(checked):
        console.print(line, soft_wrap=True)
    if arguments.json is not None:
        write_json(arguments.json, checked)
    return ExitCode.FAILED if any(one.errors for one in checked) else ExitCode.COMPLETED


def run_play(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Let a person play an episode."""
    import readline  # noqa: F401, so that arrow keys move within a line and bring earlier lines back

    from asyncrl.authoring import env_play
    from asyncrl.authoring.subject import compose_for_author, subject_named

    named, overrides = arguments.environment, arguments.overrides
    subject = subject_named(compose_for_author(named, overrides), arguments.member)
    task = env_play.find_task(subject, arguments.split, arguments.task)
    turns = env_play.turns_of_terminal(input) if arguments.script is None else env_play.turns_of_file(arguments.script)
    return ExitCode.COMPLETED if env_play.play(subject, task, turns, console) is not None else ExitCode.FAILED


def run_eval(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Score models."""
    from asyncrl.authoring.subject import compose_for_author, has_task_files, recipe_of
    from asyncrl.cli.evaluate import evaluate_to_end, prepare
    from asyncrl.run.evaluation.request import EvaluationRequest

    named, overrides = arguments.environment, arguments.overrides
    if arguments.n is not None and not has_task_files(compose_for_author(named, overrides)):
        overrides.append(f"tasks.evaluation={arguments.n}")
    json = None if arguments.json is None else arguments.json.resolve()
    with recipe_of(named) as recipe:
        versions = () if arguments.version is None else (arguments.version,)
        request = EvaluationRequest(
            models=tuple(arguments.model),
            recipe=recipe,
            overrides=tuple(overrides),
            tasks=arguments.n,
            samples=arguments.samples,
            versions=versions,
        )
        plan, folder = prepare(request)
    code = evaluate_to_end(plan, folder, console, json)
    console.print(Text(f"read the episodes: asyncrl show {folder.path}", "dim"), soft_wrap=True)
    return code


_SERVE = """\
Serve an environment from here to the generators of a run elsewhere, whose
recipe has `environment: {kind: remote, urls: [ws://HOST:PORT]}`. The token is
taken from an environment variable on both sides. See docs/how-to/remote-environments.md."""

_MAKE_TOKEN = "python -c 'import secrets; print(secrets.token_urlsafe())'"


def _add_serve(kinds: Commands) -> None:
    """Add the command ``serve``."""
    parser = command(kinds, "serve", "serve an environment to runs elsewhere", _SERVE, run_serve, starts=True)
    parser.add_argument(
        "environment", metavar="ENVIRONMENT", help="`module:Class`, a built-in environment, or what --from knows by this name"
    )
    parser.add_argument(
        "--from",
        dest="source",
        choices=sorted(SOURCES),
        help="serve an environment of another project, whose packages are installed here",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1: this machine only)")
    parser.add_argument("--port", type=_port, required=True, help="port to listen at; 0 takes a free one")
    parser.add_argument(
        "--option", metavar="KEY=VALUE", type=_option, action="append", default=[], help="of the constructor; recipes override it"
    )
    parser.add_argument(
        "--secret", metavar="VARIABLE", action="append", default=[], help="an environment variable for `self.secrets`"
    )
    parser.add_argument(
        "--token-variable", metavar="VARIABLE", default="ASYNCRL_ENV_TOKEN", help="has the token (default ASYNCRL_ENV_TOKEN)"
    )


def run_serve(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Serve until Ctrl-C or SIGTERM."""
    import asyncio

    from asyncrl.envs.remote.served_environments import Served
    from asyncrl.envs.remote.server import serve

    token = os.environ.get(arguments.token_variable, "")
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    options = dict(arguments.option)

    def listening(port: int) -> None:
        console.print(Text(f"serving {arguments.environment} at ws://{host}:{port}; Ctrl-C ends it"), soft_wrap=True)

    log_to(logging.StreamHandler())
    try:
        if not token:
            problem = f"the environment variable {arguments.token_variable} is not set"
            raise RecipeError("", problem, f"export {arguments.token_variable}=$({_MAKE_TOKEN}), the same where you launch")
        environment = arguments.environment
        if arguments.source is not None:
            source = source_named(arguments.source)
            environment, options = source.environment, {source.option: arguments.environment, **options}
            source.get_ready(options)
        served = Served(environment, options, tuple(arguments.secret))
        name = f"asyncrl {asyncrl.__version__}"
        asyncio.run(serve(served, token, arguments.host, arguments.port, name, listening))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        problem = f"another program listens at port {arguments.port} of {arguments.host}"
        raise RecipeError("--port", problem, "end it, or choose another port; 0 takes a free one") from error
    return ExitCode.COMPLETED


def _port(text: str) -> int:
    return whole_number(text, most=65_535)


def _option(text: str) -> tuple[str, Any]:
    """Read ``KEY=VALUE``; the value is JSON, or else plain text."""
    key, separator, value = text.partition("=")
    if not separator or not key.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} must be KEY=VALUE")
    try:
        return key, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return key, value
