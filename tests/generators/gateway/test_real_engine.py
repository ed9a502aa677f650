"""Episodes that libraries of others play on a real engine: each token has the log-probability and the version that it was sampled
with, while new versions arrive in the middle of episodes and of turns."""

import asyncio
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import torch
from anthropic import AsyncAnthropic
from chat_tokenizers import make_tokenizer
from openai import AsyncOpenAI
from played import ANTHROPIC_TOOLS, LIMITS, OPENAI_TOOLS, TOOL, until
from small_engine import perturb, publish, small_model, started
from transformers import DynamicCache, Qwen3ForCausalLM

from asyncrl.core.publication import Shard
from asyncrl.core.trajectory import Sampling, Trajectory, Turn
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.completion import Completion
from asyncrl.generators.gateway.episode import GatewayLimits
from asyncrl.generators.gateway.protocols import Protocols
from asyncrl.generators.gateway.server import Gateway, Played
from asyncrl.generators.vllm.engine import VllmEngine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(660)]

LONG = GatewayLimits(
    msgspec.structs.replace(LIMITS, max_turns=10_000, max_turn_tokens=80, max_context=4000), max_trajectories=300
)
TOLERANCE = 2e-3


class Real(msgspec.Struct):
    """A real engine behind a gateway, and the weights of each of its versions."""

    engine: VllmEngine
    gateway: Gateway
    chat: ChatFormat
    models: list[Qwen3ForCausalLM]


@pytest.fixture(scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Real]:
    folder, model = tmp_path_factory.mktemp("model"), small_model()
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    engine, chat = await started(Path(folder)), ChatFormat.load(str(folder))
    gateway = Gateway(Protocols.of(engine.llm, chat, "hermes", None), chat, outlives_s=0.1)
    await gateway.start()
    yield Real(engine, gateway, chat, [model])
    await gateway.close()
    await engine.close()


async def update(real: Real, writer: Any) -> None:
    """Have the engine load another version while requests run."""
    model = copy.deepcopy(real.models[-1])
    perturb(model)
    real.models.append(model)
    shards = [Shard(name, tuple(t.shape), (0,) * t.dim(), t) for name, t in dict(model.named_parameters()).items()]
    publication = publish(writer, len(real.models) - 1, shards)
    assert await real.engine.load_publication(publication) == publication.fingerprint


def recomputed(models: list[Qwen3ForCausalLM], trajectory: Trajectory, turn: Turn) -> np.ndarray:
    """Log-probabilities of a turn's tokens: those of a version that began in its middle use the keys and values that the version
    before computed for this turn."""
    ids, found = torch.tensor(trajectory.token_ids.tolist()), []
    cache, computed = DynamicCache(), 0
    spans = [span for span in trajectory.version_spans if span.end > turn.start and span.start < turn.end]
    for span in spans:
        start, end = max(span.start, turn.start), min(span.end, turn.end)
        with torch.no_grad():
            output = models[span.version](ids[None, computed : end - 1], past_key_values=cache, use_cache=True)
        logits = output.logits[0, start - 1 - computed :]
        found.append(torch.log_softmax(logits, -1).gather(1, ids[start:end, None])[:, 0])
        computed = end - 1
    return torch.cat(found).numpy()


class Noting:
    """Samples by the engine, and notes which version it had when each request was sent.

    A request that is sent while a version is being loaded may find keys and values of the version before in the cache, and be
    sampled by the new one. What those add up to cannot be computed again, so such turns are left out.
    """

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self.sent: dict[bytes, int] = {}

    async def generate(self, token_ids: list[int], **settings: Any) -> Completion:
        self.sent[np.array(token_ids, np.int32).tobytes()] = self._engine.version
        return await self._engine.generate(token_ids, **settings)


def check(real: Real, trajectories: tuple[Trajectory, ...], noting: Noting) -> tuple[int, int]:
    """Check the turns; returns how many there were, and how many of them two versions sampled."""
    checked = several = 0
    for trajectory in trajectories:
        for turn in trajectory.turns:
            versions = trajectory.versions()[turn.start : turn.end].tolist()
            if noting.sent[trajectory.token_ids[: turn.start].tobytes()] != versions[0]:
                continue
            expected = recomputed(real.models, trajectory, turn)
            assert np.abs(trajectory.logprobs[turn.start : turn.end] - expected).max() < TOLERANCE
            checked += 1
            several += len(set(versions)) > 1
    return checked, several


class Clients:
    """Both libraries, which agents share: each client that is made reads all certificates of this machine."""

    def __init__(self, played: Played, chat: ChatFormat) -> None:
        self.openai = AsyncOpenAI(base_url=played.openai_url, api_key="none", max_retries=0, timeout=300)
        self.anthropic = AsyncAnthropic(base_url=played.anthropic_url, api_key="none", max_retries=0, timeout=300)
        self.generate_url, self.chat = f"{played.anthropic_url}/inference/v1/generate", chat


class Agent:
    """An agent that says something in each turn, whatever it gets, in the way that its number says."""

    def __init__(self, clients: Clients, number: int) -> None:
        self._clients, self._number = clients, number
        self._ways = (
            *(self._chat, self._chat_stream, self._messages, self._messages_stream),
            *(self._response, self._response_stream, self._tokens),
        )
        self.messages: list[Any] = [{"role": "user", "content": f"number {number}"}]
        self._ids: list[int] = []

    async def turn(self) -> None:
        said = await self._ways[self._number % len(self._ways)]()
        self.messages += [*said, {"role": "user", "content": f"number {self._number} goes on"}]

    async def _chat(self) -> list[Any]:
        asked = {"model": "main", "messages": self.messages, "tools": OPENAI_TOOLS}
        content = (await self._clients.openai.chat.completions.create(**asked)).choices[0].message.content
        return [{"role": "assistant", "content": content}]

    async def _chat_stream(self) -> list[Any]:
        asked = {"model": "main", "messages": self.messages, "tools": OPENAI_TOOLS, "stream": True}
        chunks = await self._clients.openai.chat.completions.create(**asked)
        return [{"role": "assistant", "content": "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])}]

    async def _messages(self) -> list[Any]:
        asked = {"model": "main", "messages": self.messages, "tools": ANTHROPIC_TOOLS, "max_tokens": 32_000}
        return [_of_blocks(await self._clients.anthropic.messages.create(**asked))]

    async def _messages_stream(self) -> list[Any]:
        asked = {"model": "main", "messages": self.messages, "tools": ANTHROPIC_TOOLS, "max_tokens": 32_000}
        async with self._clients.anthropic.messages.stream(**asked) as stream:
            return [_of_blocks(await stream.get_final_message())]

    async def _response(self) -> list[Any]:
        asked = {"model": "main", "input": self.messages, "tools": [{"type": "function", **TOOL}]}
        return _of_items(await self._clients.openai.responses.create(**asked))

    async def _response_stream(self) -> list[Any]:
        asked = {"model": "main", "input": self.messages, "tools": [{"type": "function", **TOOL}]}
        async with self._clients.openai.responses.stream(**asked) as stream:
            return _of_items(await stream.get_final_response())

    async def _tokens(self) -> list[Any]:
        new = self.messages[-1:]
        after = {"after": self._ids[-1]} if self._ids else {}
        self._ids += await (self._clients.chat.delta if after else self._clients.chat.prompt)(new, [], {}, **after)
        asked = {"model": "main", "token_ids": self._ids, "sampling_params": {"logprobs": 1}}
        answer = await self._clients.openai.post(self._clients.generate_url, cast_to=httpx.Response, body=asked)
        self._ids += answer.json()["choices"][0]["token_ids"]
        return []


def _of_blocks(message: Any) -> Any:
    blocks = [block.model_dump(include={"type", "text", "id", "name", "input"}) for block in message.content]
    return {"role": "assistant", "content": blocks}


def _of_items(response: Any) -> list[Any]:
    return [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]


async def test_updates_in_mid_turn_and_in_mid_episode(real: Real, writer) -> None:
    """Versions are loaded under streams and whole answers of all protocols, until some have come in the middle of turns."""
    turns = interrupted = 0
    while interrupted < 5:
        noting = Noting(real.engine)
        async with real.gateway.playing(LONG, noting) as played:
            clients = Clients(played, real.chat)
            agents = [Agent(clients, number) for number in range(7)]

            async def converse(agent: Agent) -> None:
                for _ in range(4):
                    await agent.turn()

            talking = asyncio.gather(*map(converse, agents))
            while not talking.done():
                if (await real.engine.report_load()).running:
                    await update(real, writer)
            await talking
        trajectories = played.episode.trajectories()
        assert [len(trajectory.turns) for trajectory in trajectories] == [4] * 7
        assert max(len(set(trajectory.versions().tolist()) - {-1}) for trajectory in trajectories) > 1
        checked, several = check(real, trajectories, noting)
        turns, interrupted = turns + checked, interrupted + several
    assert turns > interrupted


async def test_two_requests_at_once_branch_exactly(real: Real) -> None:
    noting = Noting(real.engine)
    async with real.gateway.playing(LONG, noting) as played:
        clients = Clients(played, real.chat)
        trunk = Agent(clients, 0)
        await trunk.turn()
        branches = [Agent(clients, 7), Agent(clients, 14)]
        for branch in branches:
            branch.messages = [*trunk.messages[:-1], *branch.messages]
        await asyncio.gather(*(branch.turn() for branch in branches))
        for branch in branches:
            await branch.turn()
    first, second = played.episode.trajectories()
    assert (second.parent, second.shared, len(first.turns), len(second.turns)) == (0, first.turns[0].end, 3, 2)
    assert check(real, (first, second), noting) == (5, 0)


async def test_256_conversations_at_once(real: Real) -> None:
    noting = Noting(real.engine)
    async with real.gateway.playing(LONG, noting) as played:
        clients = Clients(played, real.chat)
        agents = [Agent(clients, number) for number in range(256)]
        for _ in range(2):
            await asyncio.gather(*(agent.turn() for agent in agents))
    trajectories = played.episode.trajectories()
    assert len(trajectories) == 256
    for trajectory in trajectories:
        row = real.chat.decode(trajectory.token_ids.tolist())
        number = row.partition("number ")[2].partition("<")[0]
        assert f"number {number} goes on" in row
        assert len(trajectory.turns) == 2
    assert check(real, trajectories[::8], noting) == (64, 0)


async def test_a_client_that_leaves_costs_the_episode_its_turn_alone(real: Real) -> None:
    noting = Noting(real.engine)
    async with real.gateway.playing(LONG, noting) as played:
        agent = Agent(Clients(played, real.chat), 0)
        await agent.turn()
        await real.engine.llm.pause_generation(mode="keep", clear_cache=False)
        leaving = asyncio.create_task(agent.turn())
        load = await real.engine.report_load()
        while load.running + load.waiting == 0:
            load = await real.engine.report_load()
        leaving.cancel()
        await until(leaving.done)
        while load.running + load.waiting > 0:  # the request outlives its client by a moment
            load = await real.engine.report_load()
        await real.engine.llm.resume_generation()
        await agent.turn()
    (trajectory,) = played.episode.trajectories()
    assert check(real, (trajectory,), noting) == (2, 0)


async def test_a_stop_string_on_a_real_engine(real: Real) -> None:
    greedy = msgspec.structs.replace(LONG, episode=msgspec.structs.replace(LONG.episode, sampling=Sampling(0.0)))
    noting = Noting(real.engine)
    async with real.gateway.playing(greedy, noting) as played:
        client = AsyncOpenAI(base_url=played.openai_url, api_key="none", max_retries=0)
        messages: list[Any] = [{"role": "user", "content": "begin"}]
        said = (await client.chat.completions.create(model="main", messages=messages)).choices[0].message.content or ""
        stop = next(letter for letter in said[3:] if letter.isascii() and letter.isprintable())
        got = (await client.chat.completions.create(model="main", messages=messages, stop=[stop])).choices[0]
        messages += [{"role": "assistant", "content": got.message.content}, {"role": "user", "content": "go on"}]
        await client.chat.completions.create(model="main", messages=messages)
    _, stopped = played.episode.trajectories()
    assert (got.finish_reason, got.message.content) == ("stop", said.partition(stop)[0])
    assert check(real, (stopped,), noting) == (2, 0)
    assert real.chat.decode([int(stopped.token_ids[stopped.turns[0].end - 1])]) == stop
