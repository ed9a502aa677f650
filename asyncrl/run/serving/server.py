"""vLLM's OpenAI server as a process of this one's, which ends with it."""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import BinaryIO

import aiohttp

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import ComponentFailed
from asyncrl.core.network.open_port import open_port
from asyncrl.run.host.gpus import usable
from asyncrl.run.host.parent import ending_with_this
from asyncrl.run.serving.served_model import KEY_VARIABLE, ServedModel

LOOPBACK = "127.0.0.1"
LOOK_S = 0.5
"""Seconds between two looks whether the server answers. No event says so."""
END_S = 10.0
"""How long the server may take to end."""
_SAID = 4_000
"""The most characters of the server's last words that an error quotes."""


class Address:
    """Where a server answers, as ``http://host:port``, and the key that it asks for."""

    def __init__(self, url: str, key: str) -> None:
        self.url, self.headers = url.rstrip("/").removesuffix("/v1"), {"Authorization": f"Bearer {key}"}


@asynccontextmanager
async def serving(model: ServedModel, log: Path, seconds: float) -> AsyncIterator[Address]:
    """Serve a model on a free port of this machine, to whoever has the key, while this context is open.

    Args:
        log: what the server says goes there.
        seconds: how long it may take to start.

    Raises:
        ComponentFailed: the server ended before it answered.
        DeadlineExceeded: it did not answer in time.
    """
    port, key = open_port(LOOPBACK), secrets.token_urlsafe()
    address = Address(f"http://{LOOPBACK}:{port}", key)
    with log.open("wb") as said:
        process = _start(model, LOOPBACK, port, {KEY_VARIABLE: key}, said)
    try:
        remedy = f"see {log}; the model may need more time or memory"
        async with (
            deadline(seconds, waiter="asyncrl", owner="vLLM's server to answer", remedy=remedy),
            aiohttp.ClientSession() as http,
        ):
            while not await _answers(http, address):
                if (code := process.poll()) is not None:
                    raise ComponentFailed(f"vLLM's server ended with code {code}: {_last_words(log)}")
                await asyncio.sleep(LOOK_S)
        yield address
    finally:
        await asyncio.to_thread(_end, process)


@contextmanager
def started(model: ServedModel, host: str, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Serve a model while this context is open; what the server says goes where ours does."""
    process = _start(model, host, port, {}, None)
    try:
        yield process
    finally:
        _end(process)


def _start(
    model: ServedModel, host: str, port: int, variables: Mapping[str, str], said: BinaryIO | None
) -> "subprocess.Popen[bytes]":
    has_gpu = bool(usable())
    return subprocess.Popen(
        ending_with_this(model.command(host, port, has_gpu)),
        env={**model.variables(has_gpu), **variables},
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        # An interrupt reaches it once, from here, and not also through the terminal.
        start_new_session=True,
    )


async def _answers(http: aiohttp.ClientSession, address: Address) -> bool:
    try:
        async with http.get(f"{address.url}/health", headers=address.headers) as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the server and all its processes."""
    try:
        _signal(process, signal.SIGTERM)
    finally:  # also at a second Ctrl-C
        _signal(process, signal.SIGKILL)


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace")[-_SAID:].splitlines()
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["it said nothing"])[-1].strip() + f"; see {log}"
