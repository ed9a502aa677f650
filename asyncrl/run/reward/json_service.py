"""A service behind HTTP that answers JSON with JSON, and is asked again while it is down or overloaded."""

import asyncio
import json
import logging
from typing import TypeVar

import aiohttp
import msgspec

from asyncrl.core.errors import ComponentFailed
from asyncrl.envs.secrets import Secrets

logger = logging.getLogger(__name__)

A = TypeVar("A")

FIRST_RETRY_S, LAST_RETRY_S = 0.5, 10.0
"""How soon a service that is down is asked again: at first, and at most."""
PASSING = (408, 425, 429)
"""Statuses below 500 after which the request is made again: timeout, too early, too many requests."""
WITHOUT_KEY = (401, 403)
"""Statuses of a service that wants a key, or another one."""
SHOWN_BYTES = 200
"""How many bytes of an error's answer are read, and how many characters of it shown to the user."""
_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


class KeyRefused(ComponentFailed):
    """A service wants a key, or another one than it was given.

    Attributes:
        problem: what it answered.
        remedy: what to do about it.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem, self.remedy = problem, remedy


class _NotNow(Exception):
    """The service did not answer, or gave an error that may not come again.

    Args:
        busy: it is there, and has too much to do now, or is not done with starting.
    """

    def __init__(self, problem: str, *, busy: bool = False) -> None:
        super().__init__(problem)
        self.busy = busy


class JsonService:
    """A service, and how it is asked.

    A request is made again if the answer does not come in time, is not what was asked for, is too long, or has a status of a
    service that is down or overloaded. Redirections are not followed. How long all of it may take is for the caller to say.

    Attributes:
        name: the service, for people.
        last_problem: what was wrong the last time; a sentence that goes on after ``the last time``.

    Args:
        timeout_s: how long one request may take.
        place: the section of the recipe that has ``url`` and ``timeout_s``.
        token: what is sent as bearer token; nothing if empty.
        first_retry_s: wait before a request is made for the second time; each further wait is twice as long.
    """

    def __init__(
        self, name: str, url: str, timeout_s: float, place: str, *, token: str = "", first_retry_s: float = FIRST_RETRY_S
    ) -> None:
        self.name, self._url, self._timeout_s, self._place = name, url, timeout_s, place
        self._headers = {**_HEADERS, **({"Authorization": f"Bearer {token}"} if token else {})}
        self._first_retry_s, self._secrets = first_retry_s, Secrets({"token": token})
        self.last_problem = "there was no answer"

    async def answer(self, body: bytes | None, most: int, kind: type[A], what: str, *, patient: bool = True) -> A:
        """Post ``body``, or get without one, until the answer comes.

        Args:
            most: the most bytes of an answer.
            kind: what the JSON is converted to.
            what: what an answer of another kind lacks, for people.
            patient: ask again also if it cannot be reached or answers something else, not only if it is busy.

        Raises:
            KeyRefused: the service wants a key, or another one.
            ComponentFailed: it refuses the request, or cannot be used and is not waited for.
        """
        wait = self._first_retry_s
        while True:
            try:
                return await self._once(body, most, kind, what)
            except _NotNow as problem:
                if not (patient or problem.busy):
                    raise ComponentFailed(f"{self.name} cannot be used: {problem}") from problem
                self.last_problem = str(problem)
                logger.warning("%s: %s; it is asked again in %g s", self.name, problem, wait)
            await asyncio.sleep(wait)
            wait = min(2 * wait, LAST_RETRY_S)

    async def _once(self, body: bytes | None, most: int, kind: type[A], what: str) -> A:
        seconds = self._timeout_s
        try:
            status, answer = await self._exchange(body, seconds, most)
            if 200 <= status < 300:
                return msgspec.convert(json.loads(answer), kind)
        except TimeoutError as error:
            raise _NotNow(f"it did not answer within {self._place}.timeout_s {seconds:g} s", busy=True) from error
        except (OSError, aiohttp.ClientError) as error:
            raise _NotNow(f"it could not be reached ({type(error).__name__}: {error})") from error
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            raise _NotNow(f"its answer holds no {what} ({error})") from error
        said = self._secrets.clean(answer.decode(errors="replace"))  # some quote the key that they refuse
        problem = f"it answered status {status}: {said[:SHOWN_BYTES]!r}"
        if status >= 500 or status in PASSING:
            raise _NotNow(problem, busy=True)
        refuses = f"{self.name} refuses the request: {problem}"
        if status in WITHOUT_KEY:
            key = f"{self._place}.token_variable"
            remedy = f"name the environment variable that has its key as {key}"
            if "Authorization" in self._headers:
                remedy = f"export its key in the environment variable that {key} names"
            raise KeyRefused(refuses, remedy)
        raise ComponentFailed(f"{refuses}; see its log, and check {self._place}.url in the recipe")

    async def _exchange(self, body: bytes | None, seconds: float, most: int) -> tuple[int, bytes]:
        """Make a request, and return status and body of the answer; of an error's body only the beginning."""
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds), trust_env=True, auto_decompress=False) as session,
            session.request(
                "GET" if body is None else "POST", self._url, data=body, headers=self._headers, allow_redirects=False
            ) as response,
        ):
            good = 200 <= response.status < 300
            received = bytearray()
            async for block in response.content.iter_any():
                received += block
                if good and len(received) > most:
                    raise _NotNow(f"it answered more than {most} bytes")
                if not good and len(received) >= SHOWN_BYTES:
                    break
            return response.status, bytes(received)
