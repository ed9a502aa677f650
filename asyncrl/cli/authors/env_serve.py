"""``asyncrl env serve``: serves an environment to workers elsewhere.

It imports nothing but the environment, its server and the console, so that it runs where torch, vLLM and Ray are not installed.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
from typing import TYPE_CHECKING, Any

import msgspec
from rich.text import Text

import asyncrl
from asyncrl.cli.arguments import command, whole_number
from asyncrl.core.errors import RecipeError
from asyncrl.core.process.log_format import log_to
from asyncrl.envs.other_projects.sources import SOURCES, source_named

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.cli.arguments import Commands
    from asyncrl.cli.outcome import ExitCode

_DESCRIPTION = """\
Serve an environment from here to the generators of a run elsewhere, whose
recipe has `environment: {kind: remote, urls: [ws://HOST:PORT]}`. The token is
taken from an environment variable on both sides. See docs/how-to/remote-environments.md."""

_MAKE_TOKEN = "python -c 'import secrets; print(secrets.token_urlsafe())'"


def add_command(kinds: Commands) -> None:
    """Add the command ``serve``."""
    parser = command(kinds, "serve", "serve an environment to runs elsewhere", _DESCRIPTION, run, starts=True)
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


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Serve until Ctrl-C or SIGTERM."""
    import asyncio

    from asyncrl.cli.outcome import ExitCode
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
