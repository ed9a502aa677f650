"""``asyncrl agent replay``: serves an agent the kept traffic of an episode, and stops at the first request that differs.

What always holds: nothing is sampled, and no model is needed. A request is the same if all is that bears on its answer. It gets
the answer that was kept for it, at a time when it could have come: all answers have been given that were there before it came
the first time. So requests that were under way at once may come in any order, and others in theirs alone.
"""

import asyncio
import os
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from asyncrl.authoring.agents.json_difference import first_difference
from asyncrl.core.errors import RecipeError
from asyncrl.envs.agent.agent_process import CommandProcess, kept, until_ended
from asyncrl.envs.agent.command_keeper import NOT_FOUND
from asyncrl.envs.agent.environment import episode_variables, lasting_variables, with_interpreter
from asyncrl.envs.played_by_agent import Endpoint
from asyncrl.generators.gateway.parameters import HONOURED
from asyncrl.generators.gateway.problems import Kind, Problem
from asyncrl.generators.gateway.protocol import Protocol
from asyncrl.generators.gateway.server import LOOPBACK
from asyncrl.generators.gateway.traffic import UNANSWERED, Exchange, Traffic

_LARGEST = 2**28


class Replayed(msgspec.Struct, frozen=True):
    """How a replay went.

    Attributes:
        answered: how many requests were answered as they had been.
        kept: how many were to be answered.
        difference: how the first request differs that does; None if none does.
        status: the agent's exit status.
        overdue_s: the recipe's deadline of an episode, if the agent was killed by it; None if it ended before.
    """

    answered: int
    kept: int
    difference: str | None
    status: int
    overdue_s: float | None = None

    @property
    def is_same(self) -> bool:
        """Whether the agent asked for all that it had asked for, and for nothing else."""
        return self.difference is None and self.overdue_s is None and self.answered >= self.kept


class Answers:
    """The kept answers of an episode, each given once.

    Args:
        folder: the folder of the replayed episode. It takes the place of the first one's in all texts.

    Attributes:
        answered: how many of the answers that had reached the agent were given.
        kept: how many there are.
        difference: is done with the first request that differs: how it does.
    """

    def __init__(self, traffic: Traffic, folder: str) -> None:
        self._places = (traffic.given.folder.encode(), folder.encode())
        self._is_whole, taken_back = traffic.is_whole, traffic.taken_back
        numbered = enumerate((each for each in traffic.exchanges if each.status != UNANSWERED), 1)
        self._left = {number: self._moved(exchange) for number, exchange in numbered}
        self._counts = {number: _what_counts(each.path, each.asked) for number, each in self._left.items()}
        self._lost = {number for number, each in self._left.items() if each.turn in taken_back}
        self.kept, self.answered = len(self._left) - len(self._lost), 0
        self.difference: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def _moved(self, exchange: Exchange) -> Exchange:
        """Return what would have been asked and answered in the folder of the replay."""
        asked, answered = (each.replace(*self._places) for each in (exchange.asked, exchange.answered))
        return msgspec.structs.replace(exchange, asked=asked, answered=answered)

    def to(self, path: str, body: bytes) -> Exchange | None:
        """Return the exchange that a request repeats; None if there is none, which ends the replay."""
        if self.difference.done():
            return None
        asked = _what_counts(path, body)
        by = min((each.ended for number, each in self._left.items() if number not in self._lost), default=None)
        now = {number: each for number, each in self._left.items() if by is None or each.arrived < by}
        same = [number for number, each in self._left.items() if each.path == path and self._counts[number] == asked]
        ready = sorted((number for number in same if number in now), key=lambda number: (number in self._lost, number))
        if ready:
            self.answered += ready[0] not in self._lost
            return self._left.pop(ready[0])
        self.difference.set_result(f"{path}: {self._difference(path, asked, now, same)}")
        return None

    def _difference(self, path: str, asked: Any, now: dict[int, Exchange], same: Sequence[int]) -> str:
        if same:
            return f"it was request {same[0]}, and comes before request {min(now)} ({now[min(now)].path})"
        if not now:
            unkept = "" if self._is_whole else ", as the traffic was too large"
            return f"after this no request was kept{unkept}"
        alike = [self._counts[number] for number, each in now.items() if each.path == path]
        if not alike:
            return f"request {min(now)} was {now[min(now)].path}"
        nearest = max(alike, key=lambda kept: _shared(kept, asked))
        return first_difference(nearest, asked) or "it is written otherwise"


def _what_counts(path: str, body: bytes) -> Any:
    """Return what of a request bears on its answer."""
    try:
        asked = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body.decode(errors="replace")
    protocol = next((each for each in Protocol if path == f"POST {each.path}"), None)
    if protocol is None or not isinstance(asked, dict):
        return asked
    return {name: value for name, value in asked.items() if name in HONOURED[protocol] and value is not None}


def _shared(kept: Any, asked: Any) -> int:
    """Count the bytes with which two requests begin alike."""
    first, second = (msgspec.json.encode(each, order="sorted") for each in (kept, asked))
    return next((place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))


@asynccontextmanager
async def _served(answers: Answers) -> AsyncIterator[Endpoint]:
    """Serve the answers; yields where."""
    prefix = f"/e/{secrets.token_urlsafe(16)}"

    async def handle(request: web.Request) -> web.StreamResponse:
        if not request.path.startswith(f"{prefix}/"):
            raise web.HTTPNotFound
        exchange = answers.to(f"{request.method} {request.path.removeprefix(f'{prefix}/')}", await request.read())
        if exchange is None:
            protocol = Protocol.MESSAGES if "anthropic-version" in request.headers else Protocol.CHAT
            problem = Problem(Kind.OVER, f"the replay has ended: {answers.difference.result()}")
            return web.json_response(problem.told_in(protocol), status=problem.status, headers={"x-should-retry": "false"})
        kind = "text/event-stream" if exchange.is_stream else "application/json"
        again = {} if exchange.status < 400 else {"x-should-retry": "false"}
        return web.Response(body=exchange.answered, status=exchange.status, content_type=kind, headers=again)

    app = web.Application(client_max_size=_LARGEST)
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        host, port = runner.addresses[0][:2]
        yield Endpoint(f"http://{host}:{port}{prefix}/v1", f"http://{host}:{port}{prefix}")
    finally:
        await runner.cleanup()


async def replay(traffic: Traffic, command: Sequence[str]) -> Replayed:
    """Run an agent against kept traffic, with what it was started with the first time.

    Args:
        command: the agent's command line, in which ``python`` is this one, as in a recipe. What it prints goes where ours does.

    Raises:
        RecipeError: there is no such command, or a secret that the recipe names is not set.
        EnvironmentBroken: the agent was killed, and did not end.
    """
    given = traffic.given
    missing = [name for name in given.secrets if name not in os.environ]
    if missing:
        raise RecipeError("environment.secrets", f"the environment variable {missing[0]} is not set", "export it")
    with tempfile.TemporaryDirectory(prefix="asyncrl-replay-") as folder:
        task, result, room = (Path(folder) / name for name in ("task.json", "result.json", "work"))
        room.mkdir()
        task.write_bytes(given.task)
        answers = Answers(traffic, folder)
        async with _served(answers) as endpoint:
            lasting = lasting_variables(given.variables, {name: os.environ[name] for name in given.secrets})
            variables = {**episode_variables(endpoint, (task, result, room)), **lasting}
            process = await kept(with_interpreter(command, sys.executable), room, variables, asyncio.subprocess.DEVNULL)
            began = time.monotonic()
            what, limit = "the replayed agent", given.episode_timeout_s
            ended = await until_ended(CommandProcess(process), answers.difference, what, limit)
            is_late = not answers.difference.done() and time.monotonic() - began >= limit
    if ended.status == NOT_FOUND and not answers.answered:
        raise RecipeError("COMMAND", f"there is no program {command[0]!r} here", "write its whole path")
    difference = answers.difference.result() if answers.difference.done() else None
    return Replayed(answers.answered, answers.kept, difference, ended.status, limit if is_late else None)
