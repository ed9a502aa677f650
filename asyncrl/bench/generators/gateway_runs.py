"""Episodes that clients in another process play through the gateway, for ``asyncrl bench generators``.

What always holds: an episode has the turns and the tools of the episodes that are played without a gateway; and what the gateway
adds to a request is its time beside the sampling.
"""

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from asyncrl.bench.generators import gateway_clients
from asyncrl.bench.generators.generator_runs import Measured, Request, Waiting, cost_of, make_tasks
from asyncrl.core.errors import ComponentFailed
from asyncrl.core.trajectory import Sampling
from asyncrl.generators.completion import Completion
from asyncrl.generators.gateway.episode import GatewayLimits, GatewayTurn
from asyncrl.generators.gateway.protocols import Answer, Protocols
from asyncrl.generators.gateway.server import Gateway

ClientKind = Literal["bare", "openai"]
_ENDED_S = 600.0
_SAMPLING: ContextVar[list[float]] = ContextVar("seconds that the current request was sampled for")


class Through(msgspec.Struct, frozen=True):
    """What episodes through the gateway cost.

    Attributes:
        tokens_per_s: sampled tokens per second.
        front_end_cpu_s: processor time of this process.
        requests: what the engine was asked.
        beside_sampling_ms: of each request, what it took in the gateway beside the sampling.
    """

    tokens_per_s: float
    front_end_cpu_s: float
    requests: Sequence[Request]
    beside_sampling_ms: Sequence[float]

    def percentile_ms(self, percent: float) -> float:
        """Return what so many percent of the requests took at most beside the sampling."""
        return float(np.percentile(self.beside_sampling_ms, percent))


class _TimedProtocols(Protocols):
    """Notes what each request takes beside the sampling."""

    beside_sampling_ms: list[float]

    async def answer(self, turn: GatewayTurn, body: Mapping[str, Any]) -> Answer:
        sampling: list[float] = []
        _SAMPLING.set(sampling)
        began = time.perf_counter()
        answer = await super().answer(turn, body)
        self.beside_sampling_ms.append((time.perf_counter() - began - sum(sampling)) * 1e3)
        return answer


class _Recorded:
    """Samples the turns of one episode, and keeps what was asked."""

    def __init__(self, measured: Measured, episode: int, requests: list[Request]) -> None:
        self._engine, self._episode, self._requests = measured.engine, episode, requests

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        known_experts: int = 0,
    ) -> Completion:
        """Sample a turn."""
        prompt, began = list(token_ids), time.perf_counter()
        completion = await self._engine.generate(
            token_ids,
            max_tokens=max_tokens,
            sampling=sampling,
            stop_token_ids=stop_token_ids,
            known_experts=known_experts,
        )
        _SAMPLING.get().append(time.perf_counter() - began)
        self._requests.append(Request(self._episode, prompt, len(completion.token_ids)))
        return completion


async def play_through(measured: Measured, client: ClientKind, count: int, seed: int) -> Through:
    """Have a client play ``count`` episodes at once.

    Raises:
        ComponentFailed: the client failed.
    """
    await measured.llm.reset_prefix_cache()
    protocols = _TimedProtocols.of(measured.llm, measured.chat, "hermes", None)
    assert isinstance(protocols, _TimedProtocols)
    protocols.beside_sampling_ms = []
    gateway = Gateway(protocols, measured.chat)
    await gateway.start()
    requests: list[Request] = []
    try:
        async with AsyncExitStack() as episodes:
            limits = GatewayLimits(measured.limits)
            each = [gateway.playing(limits, _Recorded(measured, number, requests)) for number in range(count)]
            urls = [(await episodes.enter_async_context(playing)).openai_url for playing in each]
            plan = {
                "urls": urls,
                "prompts": [task.question for task in make_tasks(count, seed)],
                "tool": Waiting.tools["add"].spec.as_template_input(),
                "turns": measured.limits.max_turns,
            }
            before = await measured.cpu_seconds()
            seconds = await _played(client, plan)
            cost = cost_of(requests, seconds, before, await measured.cpu_seconds())
    finally:
        await gateway.close()
    return Through(cost.tokens_per_s, cost.front_end_cpu_s, requests, protocols.beside_sampling_ms)


async def _played(client: ClientKind, plan: Mapping[str, Any]) -> float:
    """Have a client process play; returns how long that took."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, str(Path(gateway_clients.__file__)), client)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_ENDED_S):
            process.stdin.write(msgspec.json.encode(plan) + b"\n")
            ready = await process.stdout.readline()
            began = time.perf_counter()
            process.stdin.write(b"begin\n")
            ended = await process.stdout.readline()
            seconds = time.perf_counter() - began
            if (ready, ended) != (b"ready\n", b"ended\n") or await process.wait():
                raise ComponentFailed(f"the {client} client of the gateway failed: its output is above")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return seconds
