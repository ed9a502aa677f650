"""One episode: the model and the environment take turns until something ends it.

What always holds: the environment is closed exactly once, whatever happens; an error of the environment fails the
attempt and never becomes a reward; a mistake of the model leads to a stop reason and a reward, and never fails the
attempt.
"""

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from numbers import Real

import msgspec
import numpy as np

from asyncrl.core.episode import Episode
from asyncrl.core.errors import EnvironmentBroken, PromptTooLong
from asyncrl.core.ids import GroupId
from asyncrl.core.messages import CallOutcome, CallRecord, MalformedCall
from asyncrl.core.plug_ins.error_counts import ErrorCounts
from asyncrl.core.plug_ins.users_error import UsersError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.reward_range import LARGEST_REWARD
from asyncrl.core.task import Task
from asyncrl.core.text import writable
from asyncrl.core.trajectory import EpisodeTimes, Sampling, StopReason
from asyncrl.envs.base import Action, Environment, Fault, Observation, StepResult
from asyncrl.envs.hosting.hosted import HostedEnvironment, make_hosted
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.completion import Sampler, Samplers
from asyncrl.generators.episode_time import EpisodeTime
from asyncrl.generators.loop_share import LoopShare
from asyncrl.generators.token_stream import TokenStream
from asyncrl.generators.tool_calls.reader import ToolCallReader
from asyncrl.generators.tool_output import TOOL_OUTPUT_CUT, cut_tool_outputs

MALFORMED_PENALTY = "malformed_penalty"
"""The metric with what malformed calls took from the episode's reward: a number below 0, or 0."""
_RESERVED = {
    TOOL_OUTPUT_CUT: "characters cut from tool outputs",
    MALFORMED_PENALTY: "what malformed calls take from the reward (environment.malformed_penalty)",
}

_LARGEST = float(np.finfo(np.float32).max)
"""The largest metric: the largest 32-bit float. Sums over an episode have 64 bits and stay finite."""
_TOOL_NAME, _PROBLEM = 100, 300
"""The most characters that are kept of a tool's name, which the model may have made up, and of what was wrong with a call."""


class EpisodeLimits(msgspec.Struct, frozen=True):
    """The limits of an episode, how its turns are sampled, and the faults that end it.

    Attributes:
        max_turns, max_turn_tokens, max_context, max_tool_output, episode_timeout_s: the recipe's keys of the same names.
        sampling: how the policy's tokens are sampled.
        end_on: the faults that end an episode; after other faults the model only sees the error.
        close_timeout_s: deadline of the environment's ``close``, in seconds.
        max_calls, max_sampled_tokens: the most tool calls, and the most sampled tokens, of all turns together; None if there is
            no such limit.
        malformed_penalty: what a malformed call takes from its turn's reward; None if malformed calls are not penalised.
    """

    max_turns: int
    max_turn_tokens: int
    max_context: int
    max_tool_output: int
    sampling: Sampling
    end_on: frozenset[Fault]
    episode_timeout_s: float
    close_timeout_s: float
    max_calls: int | None = None
    max_sampled_tokens: int | None = None
    malformed_penalty: float | None = None

    @classmethod
    def of(cls, recipe: Recipe, member: str = "") -> "EpisodeLimits":
        """Take the limits for training from a recipe, for the episodes of one member of its environment."""
        environment = recipe.environment.by_member[member]
        policies = {Fault.MALFORMED_CALL: environment.on_malformed_call, Fault.TOOL_ERROR: environment.on_tool_error}
        return cls(
            max_turns=environment.max_turns,
            max_turn_tokens=recipe.sampling.max_turn_tokens,
            max_context=recipe.model.max_context,
            max_tool_output=environment.max_tool_output,
            sampling=recipe.sampling.sampling,
            end_on=frozenset(fault for fault, policy in policies.items() if policy == "end"),
            episode_timeout_s=environment.episode_timeout_s,
            close_timeout_s=environment.tool_timeout_s,
            max_calls=environment.max_calls,
            max_sampled_tokens=environment.max_sampled_tokens,
            malformed_penalty=environment.malformed_penalty if environment.on_malformed_call == "penalise" else None,
        )

    @classmethod
    def for_evaluation(cls, recipe: Recipe, member: str = "") -> "EpisodeLimits":
        """Take the limits for evaluation from a recipe, for the episodes of one member of its environment."""
        evaluation = recipe.evaluation
        turn_tokens = recipe.sampling.max_turn_tokens if evaluation.max_turn_tokens is None else evaluation.max_turn_tokens
        sampling = msgspec.structs.replace(evaluation.sampling, stop=recipe.sampling.stop)
        return msgspec.structs.replace(cls.of(recipe, member), sampling=sampling, max_turn_tokens=turn_tokens)

    def greedy(self) -> "EpisodeLimits":
        """Return the same limits for an episode that is sampled at temperature 0."""
        return msgspec.structs.replace(self, sampling=Sampling(temperature=0.0, stop=self.sampling.stop))

    def widened(self, *, max_turns: int, max_turn_tokens: int, max_context: int) -> "EpisodeLimits":
        """Return limits of at least so many turns and tokens a turn, with this context and without all that a recipe may omit."""
        return msgspec.structs.replace(
            self,
            max_turns=max(self.max_turns, max_turns),
            max_turn_tokens=max(self.max_turn_tokens, max_turn_tokens),
            max_context=max_context,
            sampling=msgspec.structs.replace(self.sampling, stop=()),
            end_on=frozenset(),
            max_calls=None,
            max_sampled_tokens=None,
            malformed_penalty=None,
        )

    def room(self, length: int, sampled: int) -> tuple[int, StopReason]:
        """Return how many tokens the next turn may have, and the stop reason of an episode whose turn needs more.

        Args:
            length: tokens of the episode so far.
            sampled: how many of them the policy sampled.
        """
        limits = [(self.max_turn_tokens, StopReason.TURN_LENGTH), (self.max_context - length, StopReason.CONTEXT_LENGTH)]
        if self.max_sampled_tokens is not None:
            limits.append((self.max_sampled_tokens - sampled, StopReason.SAMPLED_TOKENS))
        return min(limits, key=lambda limit: limit[0])


class EpisodeName(msgspec.Struct, frozen=True):
    """Identifies an episode within its run."""

    group_id: GroupId
    sample_index: int
    attempt: int


PlayAgent = Callable[[HostedEnvironment, EpisodeName, EpisodeLimits, Samplers, EpisodeTimes], Awaitable[Episode]]
"""Has an agent play an episode whose environment is ready; see :func:`asyncrl.generators.gateway.agent_play.agent_episode`."""


class EpisodeTools(msgspec.Struct, frozen=True):
    """What all episodes of one worker share.

    Attributes:
        engine: gives each episode what samples its turns.
        chat: turns messages into token ids.
        reader: reads tool calls from sampled text.
        make_environment: makes the environment of an episode of a task; see
            :meth:`asyncrl.envs.hosting.worker_environments.WorkerEnvironments.make`.
        errors: counts the errors of the environments' code.
        share: gives the episodes their turns in the event loop.
        play_agent: plays the episodes of agents; None if no environment has one.
    """

    engine: Samplers
    chat: ChatFormat
    reader: ToolCallReader
    make_environment: Callable[[Task], Environment]
    errors: ErrorCounts = msgspec.field(default_factory=ErrorCounts)
    share: LoopShare = msgspec.field(default_factory=LoopShare)
    play_agent: "PlayAgent | None" = None


async def run_episode(
    task: Task, name: EpisodeName, limits: EpisodeLimits, tools: EpisodeTools, queued_s: float = 0.0
) -> Episode:
    """Run one episode of ``task``, which waited for ``queued_s`` seconds; its reward is the sum of its turns' rewards.

    Raises:
        EnvironmentBroken: the environment raised, hung in ``reset`` or while it scored the final answer, or returned something
            invalid.
        PromptTooLong: the task's prompt leaves no room for a turn.
        ComponentFailed: the engine died.
    """
    stream = TokenStream()
    metrics: dict[str, float] = {}
    began, started = time.time() - queued_s, time.perf_counter()
    await tools.share.turn()
    async with _environment_of(task, limits, tools) as environment:
        await environment.ready()
        if environment.agent is not None:
            if tools.play_agent is None:
                raise RuntimeError("an agent is to play, and its worker cannot have it play")
            return await tools.play_agent(environment, name, limits, tools.engine, EpisodeTimes(began, queued_s))
        episode_time = EpisodeTime(limits.episode_timeout_s)
        try:
            async with episode_time.scope:
                observation = await checked_reset(environment)
                reset_s = time.perf_counter() - started
                with tools.engine.episode() as sampler:
                    stop_reason = await _play(environment, observation, limits, tools, sampler, episode_time, stream, metrics)
        except TimeoutError as error:
            if not episode_time.scope.expired():
                raise
            if not stream or episode_time.scoring:
                slow = "scoring its final answer" if stream else "reset()"
                problem = f"{slow} took longer than environment.episode_timeout_s = {limits.episode_timeout_s:g} s"
                raise EnvironmentBroken(f"task {task.id}: {problem}; make it faster, or raise the limit") from error
            stop_reason = StopReason.EPISODE_TIMEOUT
    return Episode(
        task_id=task.id,
        group_id=name.group_id,
        sample_index=name.sample_index,
        attempt=name.attempt,
        trajectories=(stream.trajectory(),),
        reward=sum(turn.reward for turn in stream.turns),
        stop_reason=stop_reason,
        sampling=limits.sampling,
        metrics=metrics,
        times=EpisodeTimes(began, queued_s, reset_s),
    )


async def _play(
    environment: HostedEnvironment,
    observation: Observation,
    limits: EpisodeLimits,
    tools: EpisodeTools,
    sampler: Sampler,
    episode_time: EpisodeTime,
    stream: TokenStream,
    metrics: dict[str, float],
) -> StopReason:
    """Play turns, and add them to ``stream`` and ``metrics``; returns why the episode ended.

    A deadline may end the episode at any await, so both are valid at each of them.
    """
    await tools.share.turn()
    with environment.blamed("reset"):  # the observation may hold something that no template can render
        stream.append_given(await tools.chat.prompt(observation.messages, observation.tools))
        reader = tools.reader.knowing(observation.tools)
    if len(stream) >= limits.max_context:
        raise PromptTooLong(environment.task.id, len(stream), limits.max_context)
    if limits.malformed_penalty is not None:
        metrics[MALFORMED_PENALTY] = 0.0
    calls = sampled_tokens = 0
    for turn in range(limits.max_turns):
        room, needs_more = limits.room(len(stream), sampled_tokens)
        await tools.share.turn()
        asked = time.perf_counter()
        completion = await sampler.generate(
            stream.token_ids,
            max_tokens=room,
            sampling=limits.sampling,
            stop_token_ids=tools.chat.ends_of_turn,
            known_experts=stream.known_experts,
        )
        sampled = time.perf_counter()
        stream.append_turn(completion, sampled - asked)
        sampled_tokens += len(completion.token_ids)
        text = tools.chat.turn_text(completion.token_ids.tolist())
        if not completion.finished_by_stop:
            if await reader.is_cut_within_call(text):
                stream.answer_turn(0.0, (_truncated_call(needs_more),), 0.0)
            return needs_more
        action = await reader.action(text)
        calls += len(action.calls)
        if limits.max_calls is not None and calls > limits.max_calls:
            return StopReason.MAX_CALLS
        is_answer = environment.scores_answers and not action.calls
        with episode_time.scored() if is_answer else nullcontext():
            result = await checked_step(environment, action)
        for raised in result.errors:
            tools.errors.count(raised, f"task {environment.task.id}")
        reward, rewards = result.reward, result.rewards
        if limits.malformed_penalty is not None:
            penalty = limits.malformed_penalty * malformed_calls(action, result)
            reward -= penalty
            metrics[MALFORMED_PENALTY] -= penalty
            rewards = {**rewards, MALFORMED_PENALTY: -penalty} if penalty else rewards
        stream.answer_turn(reward, result.calls, time.perf_counter() - sampled, rewards)
        for metric, value in result.metrics.items():
            metrics[metric] = metrics.get(metric, 0.0) + value
        if result.done:
            return StopReason.ENVIRONMENT_DONE
        if result.fault in limits.end_on:
            return StopReason.MALFORMED_CALL if result.fault is Fault.MALFORMED_CALL else StopReason.TOOL_ERROR
        if limits.max_sampled_tokens is not None and sampled_tokens >= limits.max_sampled_tokens:
            return StopReason.SAMPLED_TOKENS
        if turn + 1 < limits.max_turns:
            await tools.share.turn()
            with environment.blamed("step"):
                messages, cut = cut_tool_outputs(result.observation.messages, limits.max_tool_output)
                if cut:
                    metrics[TOOL_OUTPUT_CUT] = metrics.get(TOOL_OUTPUT_CUT, 0.0) + cut
                delta = await tools.chat.delta(messages, observation.tools, after=stream.token_ids[-1])
            if len(stream) + len(delta) >= limits.max_context:
                return StopReason.CONTEXT_LENGTH
            stream.append_given(delta)
    return StopReason.MAX_TURNS


def _truncated_call(limit: StopReason) -> CallRecord:
    return CallRecord("", 0.0, CallOutcome.TRUNCATED, f"the turn was cut off in the middle of the call: {limit}")


def malformed_calls(action: Action, result: StepResult) -> int:
    """Count the malformed calls of a turn: those the environment reports, and at least those that could not be read."""
    unreadable = sum(isinstance(call, MalformedCall) for call in action.calls)
    return max(unreadable, sum(record.outcome is CallOutcome.MALFORMED for record in result.calls))


async def checked_reset(environment: HostedEnvironment) -> Observation:
    """Begin the episode, and check what the environment returns; raises only ``EnvironmentBroken``."""
    observation = await environment.reset()
    with environment.blamed("reset"):
        if not isinstance(observation, Observation):
            raise TypeError(f"it must return an Observation, not {observation!r}")
    return observation


async def checked_step(environment: HostedEnvironment, action: Action) -> StepResult:
    """Play one turn, and check what the environment returns; raises only ``EnvironmentBroken``."""
    result = await environment.step(action)
    with environment.blamed("step"):
        if not isinstance(result, StepResult):
            raise TypeError(f"it must return a StepResult, not {result!r}")
        return StepResult(
            result.observation,
            reward=_number("reward", result.reward, LARGEST_REWARD),
            done=bool(result.done),
            metrics={metric_name(name): _number(name, value) for name, value in result.metrics.items()},
            fault=None if result.fault is None else Fault(result.fault),
            calls=tuple(_call(record) for record in result.calls),
            errors=tuple(error for error in result.errors if isinstance(error, UsersError)),
            rewards={metric_name(name): _number(name, value, LARGEST_REWARD) for name, value in result.rewards.items()},
        )


def _call(record: object) -> CallRecord:
    if not isinstance(record, CallRecord):
        raise TypeError(f"it reports a call {record!r}, which must be a CallRecord")
    return CallRecord(
        writable(record.tool)[:_TOOL_NAME],
        _number("seconds", record.seconds),
        record.outcome,
        writable(record.problem)[:_PROBLEM],
    )


def metric_name(name: object) -> str:
    """Return the name of a metric that an environment reports; raises if it cannot be one."""
    if not isinstance(name, str):
        raise TypeError(f"it reports a metric named {name!r}, but the name must be a string")
    name.encode()  # raises if the name holds half of a surrogate pair
    if name in _RESERVED:
        raise ValueError(f"it reports a metric {name!r}, a name reserved for {_RESERVED[name]}; rename it")
    return str(name)


def _number(name: str, value: object, largest: float = _LARGEST) -> float:
    """Convert ``value``, which may be a boolean or a numpy number, to a Python float: an episode holds only those."""
    if not isinstance(value, Real | np.bool_) or not math.isfinite(value):
        raise ValueError(f"its {name} is {value!r}; it must be a finite number")
    number = float(value)
    if abs(number) > largest:
        raise ValueError(f"its {name} is {number:g}; in size it must be at most {largest:g}")
    return number


@asynccontextmanager
async def _environment_of(task: Task, limits: EpisodeLimits, tools: EpisodeTools) -> AsyncIterator[HostedEnvironment]:
    """Make a new environment, and close it at the end. An error of its code is counted."""
    try:
        environment = make_hosted(tools.make_environment, task)
        try:
            yield environment
        finally:
            await environment.close(limits.close_timeout_s)
    except EnvironmentBroken as broken:
        if broken.raised is not None:
            tools.errors.count(broken.raised, f"task {task.id}")
        raise
