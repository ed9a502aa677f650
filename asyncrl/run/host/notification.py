"""Tells a command or a URL that a run has ended, as section ``notify`` of the recipe asks.

What always holds: it takes at most :data:`NOTIFY_S` seconds each, and whatever happens, the run's end is what it was; a problem
is returned as a sentence.
"""

import http.client
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.notify import NotifyConfig
from asyncrl.core.text import short, writable_json
from asyncrl.envs.secrets import read_token
from asyncrl.episodes.visible import visible

NOTIFY_S = 15.0
"""How long the command, or the server, may take."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended, as it is told.

    Attributes:
        text: a sentence with all of it, for people.
        run: the run's folder.
        reward: mean reward of the last training steps; None if there was none.
        evaluation: reward of the last evaluation; None if there was none.
    """

    text: str
    name: str
    run: str
    status: str
    reason: str
    steps: int
    reward: float | None
    evaluation: float | None


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: the request would go on without the object, and perhaps to somebody else with the token."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> None:
        """Refuse."""
        problem = f"it redirects (status {code}); give the address that it redirects to"
        raise urllib.error.HTTPError(req.full_url, code, problem, headers, fp)


def check_notification(config: NotifyConfig, variables: Mapping[str, str]) -> None:
    """Refuse what could not be told at the run's end.

    Raises:
        RecipeError: there is no such command or variable, the URL is none, or a token has none.
    """
    if config.command and shutil.which(config.command[0]) is None:
        raise RecipeError("notify.command", f"there is no command {config.command[0]!r}", "name one that is on the PATH")
    if config.url is None:
        if config.token_variable is not None:
            raise RecipeError("notify.token_variable", "a token is sent to a url only, and there is none", "leave it out")
        return
    url = _url(config.url, variables)
    if url is None:
        raise RecipeError("notify.url", f"the environment variable {config.url[1:]} is not set", "export it where you launch")
    if not url.startswith(("http://", "https://")):
        shown = "its value" if config.url.startswith("$") else repr(config.url)
        raise RecipeError("notify.url", f"{shown} is no address", "give one that begins with https:// or http://")
    if config.token_variable is not None:
        read_token(config.token_variable, "notify.token_variable", variables)


def notify(config: NotifyConfig, ending: Ending, failed: bool) -> list[str]:
    """Tell whom the recipe names, and return what went wrong."""
    if config.when == "failure" and not failed:
        return []
    told = writable_json(ending)
    problems = [_command_problem(config.command, told, ending)] if config.command else []
    if config.url is not None:
        problems.append(_url_problem(config.url, config.token_variable, told))
    return [problem for problem in problems if problem]


def _command_problem(command: tuple[str, ...], told: bytes, ending: Ending) -> str:
    variables = {"ASYNCRL_RUN": ending.run, "ASYNCRL_STATUS": ending.status, "ASYNCRL_REASON": visible(ending.reason)}
    try:
        done = subprocess.run(command, input=told, env={**os.environ, **variables}, capture_output=True, timeout=NOTIFY_S)
    except subprocess.TimeoutExpired:
        return f"notify.command {command[0]!r} took more than {NOTIFY_S:g} s and was ended"
    except OSError as error:
        return f"notify.command {command[0]!r} could not be started: {error.strerror}"
    said = short(done.stderr.decode(errors="replace").strip())
    return f"notify.command {command[0]!r} ended with code {done.returncode}: {said}" if done.returncode else ""


def _url_problem(url: str, token_variable: str | None, told: bytes) -> str:
    address = _url(url, os.environ)
    if address is None:
        return f"notify.url: the environment variable {url[1:]} is not set any more"
    request = urllib.request.Request(address, told, {"Content-Type": "application/json"}, method="POST")
    if token_variable is not None:
        try:
            token = read_token(token_variable, "notify.token_variable", os.environ)
        except RecipeError as error:
            return str(error)
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.build_opener(_NoRedirection).open(request, timeout=NOTIFY_S):
            return ""
    except OSError as error:
        return f"notify.url was not reached: {getattr(error, 'reason', error)}"
    except (ValueError, http.client.HTTPException) as error:  # the address may be a secret, and these quote it
        return f"notify.url was not reached: {type(error).__name__}"


def _url(url: str, variables: Mapping[str, str]) -> str | None:
    return variables.get(url[1:]) if url.startswith("$") else url


def sentence(name: str, status: str, steps: int, reason: str, folder: Path) -> str:
    """Say in one sentence how a run ended."""
    return f"{name} {status} after {steps} training steps{f': {reason}' if reason else ''} ({folder})"
