"""Runs of one generator, for ``asyncrl bench generators``: episodes, their requests without episodes, and the loop's lag.

What always holds: the requests that the bare engine gets are those that the episodes just made, token for token, and each is
answered with as many tokens. Before each measurement the engine's prefix cache is emptied. The front end is this process.
"""

import asyncio
import gc
import random
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from asyncrl.bench.loop.loop_lag import LoopLag
from asyncrl.bench.loop.script import CALL, END_OF_CALL, SIZES, Script
from asyncrl.bench.peers.workload_tools import WORDS
from asyncrl.core.episode import Episode
from asyncrl.core.errors import ComponentFailed
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import ToolCall
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.core.task import Task
from asyncrl.core.trajectory import Sampling
from asyncrl.envs import Action, ToolEnvironment, tool
from asyncrl.envs.hosting.hosted import make_hosted
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.completion import Completion, Sampler
from asyncrl.generators.episode import EpisodeLimits, EpisodeTools, checked_reset, checked_step
from asyncrl.generators.evaluation import HeldOutTask, evaluate
from asyncrl.generators.tool_calls.reader import ToolCallReader
from asyncrl.generators.vllm.engine import VllmEngine
from asyncrl.generators.vllm.engine_arguments import EngineSettings

if TYPE_CHECKING:
    from vllm import AsyncLLMEngine

GROUP_SIZE = 8
_INSTRUCTIONS = """\
You may call functions. They are listed below, one in each line, as JSON objects with a name, a description, and the JSON schema \
of the parameters. To call one, write a JSON object with its name and its arguments between the tags of a call. They are:"""
_NUMBERS = (tuple(str(number) for number in range(10, 20)), tuple(str(number) for number in range(20, 30)))
_SCRIPT = Script(
    call=[
        *((f" {word}",) for word in WORDS[:24]),
        (CALL,),
        ('\n{"name": "add", "arguments": {"a": ',),
        _NUMBERS[0],
        (', "b": ',),
        _NUMBERS[1],
        ("}}\n",),
        (END_OF_CALL,),
    ]
)


class Waiting(ToolEnvironment):
    """The environment that is measured: its one tool waits for as long as it is set to, and never blocks.

    Args:
        wait_s: seconds that a call takes.
    """

    def __init__(self, wait_s: float = 0.0) -> None:
        self.wait_s = wait_s

    @tool
    async def add(
        self,
        a: Annotated[int, Meta(description="The first integer.")],
        b: Annotated[int, Meta(description="The second integer.")],
    ) -> int:
        """Add two integers."""
        if self.wait_s:
            await asyncio.sleep(self.wait_s)
        return a + b

    def reward(self, task: Task, answer: str) -> float:
        """Return 0: the scripted model never answers, and nothing is trained."""
        return 0.0


class Request(msgspec.Struct, frozen=True):
    """One turn as the engine was asked for it.

    Attributes:
        episode: number of the episode, in the order in which they began.
        prompt: the token ids before the turn.
        sampled: how many tokens were sampled.
    """

    episode: int
    prompt: list[int]
    sampled: int


class Cost(msgspec.Struct, frozen=True):
    """What one run took.

    Attributes:
        tokens: sampled tokens.
        seconds: duration.
        engine_cpu_s, front_end_cpu_s: processor time of the engine's processes, and of the process that asked it.
    """

    tokens: int
    seconds: float
    engine_cpu_s: float
    front_end_cpu_s: float

    @property
    def tokens_per_s(self) -> float:
        """Sampled tokens per second."""
        return self.tokens / self.seconds

    @property
    def engine_cpu_s_per_1k_tokens(self) -> float:
        """Processor time of the engine for a thousand sampled tokens."""
        return self.engine_cpu_s / self.tokens * 1e3

    @property
    def front_end_cpu_s_per_1k_tokens(self) -> float:
        """Processor time of the process that asked the engine, for a thousand sampled tokens."""
        return self.front_end_cpu_s / self.tokens * 1e3


class RecordingEngine:
    """An engine that keeps the requests of its episodes; each asyncio task is one episode."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self._episodes: dict[object, int] = {}
        self.requests: list[Request] = []

    def episode(self) -> AbstractContextManager[Sampler]:
        """Return the context of one episode; the engine keeps its first version."""
        return nullcontext(self)

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        known_experts: int = 0,
    ) -> Completion:
        """Sample a turn, and keep what was asked."""
        prompt = list(token_ids)
        episode = self._episodes.setdefault(asyncio.current_task(), len(self._episodes))
        completion = await self._engine.generate(
            token_ids,
            max_tokens=max_tokens,
            sampling=sampling,
            stop_token_ids=stop_token_ids,
            known_experts=known_experts,
        )
        self.requests.append(Request(episode, prompt, len(completion.token_ids)))
        return completion


class Measured:
    """A scripted model, its engine, and what episodes are played with. :meth:`start` makes it, :meth:`close` ends it.

    Attributes:
        limits: of each episode.
    """

    def __init__(self, engine: VllmEngine, chat: ChatFormat, limits: EpisodeLimits) -> None:
        self.engine, self.chat, self.limits = engine, chat, limits
        self._reader = ToolCallReader(chat.tokenizer, "hermes")

    @classmethod
    async def start(cls, model: Path, config: GeneratorsConfig, turns: int, start_s: float) -> "Measured":
        """Start the engine on ``model``, which :func:`make_model` wrote."""
        chat = ChatFormat.load(str(model))
        limits = EpisodeLimits(
            max_turns=turns,
            max_turn_tokens=64,
            max_context=1024,
            max_tool_output=20_000,
            sampling=Sampling(1.0),
            end_on=frozenset(),
            episode_timeout_s=600.0,
            close_timeout_s=10.0,
        )
        settings = EngineSettings(config, str(model), limits.max_context)
        engine = await VllmEngine.start(settings, name="the measured generator", start_s=start_s, answer_s=start_s)
        gc.freeze()  # as a generator does
        return cls(engine, chat, limits)

    async def close(self) -> None:
        """End the engine."""
        await self.engine.close()

    async def episodes(self, count: int, wait_s: float, seed: int, lag: LoopLag | None = None) -> tuple[Cost, list[Request]]:
        """Play ``count`` episodes at once; returns what it cost, and the requests made.

        Raises:
            ComponentFailed: an episode did not follow the script, so that it measures nothing.
        """
        await self.llm.reset_prefix_cache()
        engine = RecordingEngine(self.engine)
        tools = EpisodeTools(engine, self.chat, self._reader, lambda task: Waiting(wait_s))
        tasks = [HeldOutTask(task, "bench", GROUP_SIZE) for task in make_tasks(count // GROUP_SIZE, seed)]
        before = await self.cpu_seconds()
        began = time.perf_counter()
        with nullcontext() if lag is None else lag.probing():
            played = await evaluate(tasks, {"": self.limits}, tools, at_once=count, attempts=1)
        seconds = time.perf_counter() - began
        cost = cost_of(engine.requests, seconds, before, await self.cpu_seconds())
        for each in played:
            if not isinstance(each, Episode) or each.metrics.get("tool_calls") != self.limits.max_turns:
                raise ComponentFailed(f"an episode of the scripted model did not follow its script: {each}")
        return cost, engine.requests

    async def bare(self, requests: Sequence[Request]) -> Cost:
        """Ask vLLM for the same prompts and lengths without episodes; returns what it cost.

        The requests of an episode follow each other as they did, since each prompt contains the turn before it.
        """
        await self.llm.reset_prefix_cache()
        episodes: dict[int, list[Request]] = {}
        for request in requests:
            episodes.setdefault(request.episode, []).append(request)
        before = await self.cpu_seconds()
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for episode, turns in episodes.items():
                group.create_task(self._ask(f"bare-{began}-{episode}", turns))
        seconds = time.perf_counter() - began
        return cost_of(requests, seconds, before, await self.cpu_seconds())

    async def cpu_seconds(self) -> tuple[float, float]:
        """Processor time so far of the engine's processes, and of this one."""
        return (await self.engine.report_load()).cpu_seconds, time.process_time()

    async def _ask(self, name: str, turns: Sequence[Request]) -> None:
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind

        for number, request in enumerate(turns):
            sampling = SamplingParams(
                temperature=1.0,
                max_tokens=request.sampled,
                ignore_eos=True,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            async for output in self.llm.generate(tokens_input(request.prompt), sampling, f"{name}-{number}"):
                found = len(output.outputs[0].token_ids)
            if found != request.sampled:
                raise ComponentFailed(f"the bare engine sampled {found} tokens where {request.sampled} were asked for")

    @property
    def llm(self) -> "AsyncLLMEngine":
        """vLLM's engine."""
        return self.engine.llm


def cost_of(requests: Sequence[Request], seconds: float, before: tuple[float, float], after: tuple[float, float]) -> Cost:
    """Return what some requests cost, of processor times before and after them."""
    engine_cpu_s, front_end_cpu_s = (late - early for early, late in zip(before, after, strict=True))
    return Cost(sum(request.sampled for request in requests), seconds, engine_cpu_s, front_end_cpu_s)


def make_model(folder: Path, size: str) -> None:
    """Write the scripted model of size ``size`` to ``folder``. This takes a few seconds."""
    from asyncrl.bench.loop.scripted_model import make_scripted_model  # imports torch

    texts = [*(task.question for task in make_tasks(64, 0)), " ".join(WORDS), Waiting.tools["add"].spec.description]
    make_scripted_model(folder, SIZES[size], _SCRIPT, _INSTRUCTIONS, texts)


def make_tasks(count: int, seed: int) -> list[Task]:
    """Make ``count`` tasks with different prompts."""
    generator = random.Random(seed)
    return [
        Task(id=TaskId(f"{seed}-{number}"), prompt=f"What is {generator.randint(10, 99)} plus {number}?")
        for number in range(count)
    ]


async def tool_overhead_ms(calls: int) -> float:
    """Return what one call of a tool costs beside the tool, in milliseconds: checks, deadline, record and the answer."""
    environment = make_hosted(lambda task: Waiting(), make_tasks(1, 0)[0])
    await checked_reset(environment)
    action = Action("", (ToolCall("add", {"a": 1, "b": 2}),))
    began = time.perf_counter()
    for _ in range(calls):
        await checked_step(environment, action)
    seconds = time.perf_counter() - began
    await environment.close(10.0)
    return seconds / calls * 1e3
