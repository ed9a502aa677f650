"""A gateway over a fake engine, and clients that others made."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from anthropic import AsyncAnthropic
from chat_tokenizers import CHAT_ML, make_tokenizer
from fake_engine import FakeEngine
from openai import AsyncOpenAI
from small_engine import CONFIG, LONGEST, small_model

from asyncrl.core.trajectory import Sampling, Trajectory
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.episode import EpisodeLimits
from asyncrl.generators.gateway.episode import GatewayLimits
from asyncrl.generators.gateway.protocols import Protocols
from asyncrl.generators.gateway.server import Gateway, Played
from asyncrl.generators.vllm.engine_arguments import EngineSettings, engine_arguments

LIMITS = EpisodeLimits(
    max_turns=50,
    max_turn_tokens=400,
    max_context=4000,
    max_tool_output=1000,
    sampling=Sampling(1.0),
    end_on=frozenset(),
    episode_timeout_s=200.0,
    close_timeout_s=5.0,
)
GATEWAY_LIMITS = GatewayLimits(LIMITS)
TOOL = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
OPENAI_TOOLS: Any = [{"type": "function", "function": TOOL}]
ANTHROPIC_TOOLS: Any = [{"name": "add", "description": "Adds.", "input_schema": TOOL["parameters"]}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def write_model(folder: Path) -> None:
    small_model().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def protocols_of(folder: Path) -> Protocols:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm.renderers.hf import HfRenderer

    config = engine_arguments(EngineSettings(CONFIG, str(folder), LONGEST)).create_engine_config()
    return Protocols(config, HfRenderer, ChatFormat.load(str(folder)), "hermes", None)


class Clients(msgspec.Struct):
    """An episode, and the libraries of OpenAI and Anthropic that play it."""

    played: Played
    openai: AsyncOpenAI
    anthropic: AsyncAnthropic
    engine: FakeEngine

    def trajectories(self) -> tuple[Trajectory, ...]:
        return self.played.episode.trajectories()

    def row(self, part: int = 0) -> str:
        """The text of a trajectory, as its engine saw it."""
        return self.engine.chat.decode(self.trajectories()[part].token_ids.tolist())


@asynccontextmanager
async def clients(
    protocols: Protocols,
    script: Callable[[str], str],
    limits: GatewayLimits = GATEWAY_LIMITS,
    *,
    retries: int = 0,
    outlives_s: float = 15.0,
    keep_alive_s: float = 10.0,
    template: str = CHAT_ML,
) -> AsyncIterator[Clients]:
    engine = FakeEngine(script)
    engine.chat = ChatFormat(make_tokenizer(template))
    gateway = Gateway(protocols, engine.chat, outlives_s=outlives_s, keep_alive_s=keep_alive_s)
    await gateway.start()
    try:
        async with gateway.playing(limits, engine) as played:
            openai = AsyncOpenAI(base_url=played.openai_url, api_key="none", max_retries=retries, timeout=30)
            anthropic = AsyncAnthropic(base_url=played.anthropic_url, api_key="none", max_retries=retries, timeout=30)
            async with openai, anthropic:
                yield Clients(played, openai, anthropic, engine)
    finally:
        await gateway.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until something is so; the test's own deadline ends it."""
    while not condition():  # noqa: ASYNC110 - nothing tells when others' connections end
        await asyncio.sleep(0.001)
