"""The environments of one server: one kind, with the options of each client, in an event loop of their own.

What always holds: what episodes share is set up once for all clients with the same options; whatever an environment does to its
event loop, other event loops of the process go on.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from asyncrl.core.errors import AsyncRLError, ComponentFailed, ProcessDied
from asyncrl.core.plug_ins.error_counts import ErrorCounts
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.envs.hosting.event_loop import EventLoopThread
from asyncrl.envs.hosting.worker_environments import WorkerEnvironments
from asyncrl.envs.load import load_member
from asyncrl.envs.remote import protocol
from asyncrl.envs.secrets import Secrets, read_secrets

logger = logging.getLogger(__name__)

BLOCKED_S = 60.0
"""Seconds for which environments may block their event loop; after that the server ends and says which code blocked it."""
CLOSE_S = 10.0
"""Deadline of closing an environment, or what episodes share, when nobody uses it any more."""
START_S = 300.0
"""Deadline of setting up what environments share."""


class Served(msgspec.Struct, frozen=True):
    """What a server serves.

    Attributes:
        name: a built-in environment, or ``module:Class``.
        options: options of its constructor, which those of a client's recipe override.
        secrets: names of environment variables whose values the environment gets.
    """

    name: str
    options: Mapping[str, Any] = {}
    secrets: tuple[str, ...] = ()

    def spec(self, options: Mapping[str, Any], tool_timeout_s: float = 10.0) -> ClassEnvironmentConfig:
        """Describe the environment as a recipe would, with a client's options."""
        return ClassEnvironmentConfig(
            name=self.name, options={**self.options, **options}, secrets=self.secrets, tool_timeout_s=tool_timeout_s
        )


class ServedEnvironments:
    """What makes environments for the clients of a server.

    Attributes:
        served: what the server serves.
        name: the server's program and version, as clients are told.
        secrets: what the environment gets of this process's environment variables.
        errors: counts the errors of the environment's code.

    Raises:
        RecipeError: there is no such environment, its options do not fit, or a secret is not set.
    """

    def __init__(self, served: Served, name: str) -> None:
        self.served, self.name = served, name
        self.check({})
        self.secrets: Secrets = read_secrets(served.spec({}), os.environ)
        self.errors = ErrorCounts()
        self._made: dict[bytes, asyncio.Task[WorkerEnvironments]] = {}
        self._loop: EventLoopThread
        self._sockets_loop: asyncio.AbstractEventLoop
        self._failed: asyncio.Future[ComponentFailed]

    def start(self) -> None:
        """Start the environments' event loop. Called in the event loop of the server's sockets."""
        self._sockets_loop = asyncio.get_running_loop()
        self._failed = self._sockets_loop.create_future()
        self._loop = EventLoopThread("the environments", BLOCKED_S)

    def watch(self) -> None:
        """Notice from now on if the environments' event loop is blocked."""
        self._loop.watch()

    async def wait_failed(self) -> ComponentFailed:
        """Wait until the environments' event loop has ended or is blocked for too long, or what they share has ended by itself.

        Returns:
            What happened.
        """
        return await asyncio.shield(self._failed)

    async def call(self, work: Callable[[], Any]) -> Any:
        """Do ``work`` in the environments' event loop. If that loop is gone, the server ends."""
        try:
            return await self._loop.call(work)
        except ProcessDied as death:
            self._fail(death)
            raise

    def _fail(self, failure: ComponentFailed) -> None:
        if not self._failed.done():
            self._failed.set_result(failure)

    @property
    def blocked_by(self) -> str:
        """Sentences about code that blocks or has blocked the environments' event loop; empty if none did."""
        return "; ".join(self._loop.blocked_by)

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise ``RecipeError`` if a client's options do not fit."""
        load_member(self.served.spec(options))

    async def made_for(self, options: Mapping[str, Any], tool_timeout_s: float) -> WorkerEnvironments:
        """Return what makes environments with these options; what they share is set up first. Called in their event loop.

        Raises:
            RecipeError: the options do not fit.
            EnvironmentBroken: what they share cannot be set up.
        """
        key = protocol.encoder.encode((options, tool_timeout_s))
        if (starting := self._made.get(key)) is None:
            spec = self.served.spec(options, tool_timeout_s)
            starting = self._made[key] = asyncio.create_task(self._start_environments(spec))
        try:
            return await asyncio.shield(starting)
        except AsyncRLError:
            self._made.pop(key, None)
            raise

    async def _start_environments(self, spec: ClassEnvironmentConfig) -> WorkerEnvironments:
        made = WorkerEnvironments({"": load_member(spec)}, self.secrets, self.name)
        await made.start(START_S)
        made.lost.add_done_callback(lambda lost: self._sockets_loop.call_soon_threadsafe(self._fail, lost.result()))
        return made

    async def close(self) -> None:
        """Close what is set up, and end the environments' event loop."""
        try:
            await self._loop.call(self._close_environments)
        except ProcessDied as death:
            logger.warning("%s", death)
        self._loop.close()

    async def _close_environments(self) -> None:
        """Close what is set up, and give up what is still being set up. Called in the environments' event loop."""
        starting = list(self._made.values())
        if not starting:
            return
        for each in starting:
            each.cancel()  # which changes nothing where it has ended
        _, going_on = await asyncio.wait(starting, timeout=CLOSE_S)
        if going_on:
            logger.warning("setting up what episodes share was cancelled, and went on for %g s: it is abandoned", CLOSE_S)
        made = [each.result() for each in starting if each.done() and not each.cancelled() and each.exception() is None]
        await asyncio.gather(*(environments.close(CLOSE_S) for environments in made))
