"""Has an agent play an episode through the gateway.

What always holds: the episode ends when the agent does, or by a limit, after which the agent has a few seconds. Then its reward
is known, and its trajectories are all that the agent was given. An agent that never asked for a turn played no episode.
"""

import asyncio
import time

import msgspec

from asyncrl.core.episode import Episode
from asyncrl.core.errors import EnvironmentBroken, PromptTooLong
from asyncrl.core.trajectory import EpisodeTimes, StopReason, Trajectory
from asyncrl.envs.hosting.hosted import HostedEnvironment
from asyncrl.envs.played_by_agent import AGENT_ENDS_WITHIN_S, AgentResult, Endpoint
from asyncrl.generators.completion import Sampler, Samplers
from asyncrl.generators.episode import EpisodeLimits, EpisodeName, checked_reset, metric_name
from asyncrl.generators.gateway.episode import GatewayLimits
from asyncrl.generators.gateway.server import Gateway

TURNS_TAKEN_BACK = "turns_taken_back"
"""The metric with the turns of an episode that were sampled, and never reached the agent."""

UNENFORCED = "unenforced_requests"
"""The metric with the requests of an episode that asked for a format or a certain call, which was not enforced."""


class AgentPlay(msgspec.Struct, frozen=True):
    """What an agent played.

    Attributes:
        result: with the reward.
        traffic: what the agent asked and was answered; empty if it is not kept.
    """

    trajectories: tuple[Trajectory, ...]
    result: AgentResult
    stop_reason: StopReason
    metrics: dict[str, float]
    traffic: bytes


async def play_agent(environment: HostedEnvironment, gateway: Gateway, sampler: Sampler, limits: EpisodeLimits) -> AgentPlay:
    """Play an episode whose environment was reset; its reward has as long as the episode.

    Raises:
        EnvironmentBroken: the agent failed, asked for no turn or got no reward, or the reward failed.
        PromptTooLong: the agent's only prompts left no room for a turn.
        ComponentFailed: the engine died.
    """
    agent = environment.agent
    assert agent is not None
    spec = agent.spec
    most_s = 2 * limits.episode_timeout_s + AGENT_ENDS_WITHIN_S
    gateway_limits = GatewayLimits(limits, spec.max_trajectories, spec.constrained, spec.keep_traffic)
    async with gateway.playing(gateway_limits, sampler) as played:
        episode = played.episode
        timer = asyncio.get_running_loop().call_later(limits.episode_timeout_s, episode.end, StopReason.EPISODE_TIMEOUT)
        try:
            async with asyncio.timeout(most_s) as bound:
                endpoint = Endpoint(played.openai_url, played.anthropic_url, gateway.socket)
                result = await environment.play(endpoint, episode.over, lambda: episode.without_room is not None)
        except TimeoutError as late:
            if not bound.expired():  # it is one of the reward's own
                raise EnvironmentBroken(f"task {environment.task.id}: the reward failed: {late!r}") from late
            problem = f"task {environment.task.id}: scoring the agent's answer took longer than environment.episode_timeout_s"
            raise EnvironmentBroken(f"{problem} = {limits.episode_timeout_s:g} s; make it faster, or raise it") from late
        finally:
            timer.cancel()
        by_itself = StopReason.ENVIRONMENT_DONE if episode.without_room is None else StopReason.CONTEXT_LENGTH
        stop_reason = episode.over.result() if episode.over.done() else by_itself
    trajectories = episode.trajectories()
    if not trajectories and episode.without_room is not None:
        raise PromptTooLong(environment.task.id, episode.without_room, limits.max_context)
    if not trajectories:
        raise EnvironmentBroken(
            f"task {environment.task.id}: the agent ended without having asked for a turn; it must take its model from "
            "OPENAI_BASE_URL or ANTHROPIC_BASE_URL, as they are when the episode begins"
        )
    if result.reward is None and not result.rewards:
        raise EnvironmentBroken(
            f"task {environment.task.id}: the agent ended, and nobody gave a reward; have it write one to the file that "
            "ASYNCRL_RESULT names, or set environment.reward"
        )
    metrics = {
        **result.metrics,
        TURNS_TAKEN_BACK: float(episode.streams.taken_back),
        UNENFORCED: float(episode.unenforced),
    }
    traffic = played.traffic.kept(agent.given, episode.streams.steps) if played.traffic else b""
    return AgentPlay(trajectories, result, stop_reason, metrics, traffic)


async def agent_episode(
    gateway: Gateway,
    environment: HostedEnvironment,
    name: EpisodeName,
    limits: EpisodeLimits,
    samplers: Samplers,
    times: EpisodeTimes,
) -> Episode:
    """Have an agent play one episode of a worker.

    Args:
        times: what is known of the episode's times.

    Raises:
        EnvironmentBroken, PromptTooLong, ComponentFailed: see :func:`play_agent`.
    """
    started = time.perf_counter()
    await checked_reset(environment)
    reset_s = time.perf_counter() - started
    with samplers.episode() as sampler:
        played = await play_agent(environment, gateway, sampler, limits)
    with environment.blamed("play"):
        metrics = {metric_name(metric): value for metric, value in played.metrics.items()}
    return Episode(
        task_id=environment.task.id,
        group_id=name.group_id,
        sample_index=name.sample_index,
        attempt=name.attempt,
        trajectories=played.trajectories,
        reward=played.result.reward or 0.0,
        role_rewards=played.result.rewards,
        stop_reason=played.stop_reason,
        sampling=limits.sampling,
        metrics=metrics,
        times=msgspec.structs.replace(times, reset_s=reset_s),
        traffic=played.traffic,
    )
