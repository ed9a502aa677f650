"""Plays an episode by an agent: a command or a function that asks for the model's turns over HTTP, and knows nothing of training.

What always holds: the agent is told where its model is by the environment variables that the libraries of OpenAI and Anthropic
read; it sees the task, but not what it is judged by; nothing that it started outlives the episode; and what it does wrong is told
with the end of its standard error.
"""

import asyncio
import math
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.chat_prompt import opening
from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.messages import Message
from asyncrl.core.recipe.environment import AgentEnvironmentConfig
from asyncrl.core.reward_range import LARGEST_REWARD
from asyncrl.core.task import Task
from asyncrl.envs.agent.agent_process import TOLD_OUTPUT, AgentProcess, CommandProcess, until_ended
from asyncrl.envs.agent.function_host import FunctionHost
from asyncrl.envs.agent.sandboxed_command import SandboxedCommand
from asyncrl.envs.base import Action, Observation, StepResult
from asyncrl.envs.played_by_agent import AgentResult, Endpoint, GivenToAgent, PlayedByAgent
from asyncrl.envs.returned_reward import returned_reward
from asyncrl.envs.rewards.load import RewardFunction

KEY = "asyncrl"
"""The key that agents are given: the gateway asks for none, as an episode's address is secret."""
_PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "NODE_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Environment variables of the worker that agents get."""


class AgentEnvironment(PlayedByAgent):
    """The environment of one episode that an agent plays; one that is a function is played by the host that episodes share.

    Args:
        reward: computes the reward from the task and an answer; None if the result file holds it.
    """

    def __init__(self, spec: AgentEnvironmentConfig, reward: RewardFunction | None) -> None:
        self._spec, self._reward = spec, reward
        self._task: Task | None = None

    async def reset(self, task: Task) -> Observation:
        """Return what a dry run shows: the task's prompt. The agent makes its own of it."""
        self._task = task
        return Observation(opening("", task.prompt))

    async def step(self, action: Action) -> StepResult:
        """End the episode of a dry run, in which no agent is started."""
        return StepResult(Observation(()), 0.0, done=True)

    @property
    def spec(self) -> AgentEnvironmentConfig:
        """The recipe's section."""
        return self._spec

    @property
    def given(self) -> GivenToAgent:
        """What the agent is started with.

        Raises:
            EnvironmentBroken: the task lacks data that the recipe names.
        """
        assert self._task is not None
        told, spec = _told(self._task, self._spec.task_data), self._spec
        return GivenToAgent(told, str(self.workspace.resolve()), spec.variables, spec.secrets, spec.episode_timeout_s)

    async def play(self, endpoint: Endpoint, limited: "asyncio.Future[Any]", lacks_room: Callable[[], bool]) -> AgentResult:
        """Run the agent to its end, and return its result, without a reward if it ended well and nobody gave one.

        Args:
            limited: is done if the episode reaches a limit. The agent, whose requests are then refused, has
                :data:`AGENT_ENDS_WITHIN_S` to end by itself.
            lacks_room: whether the agent's last prompt left no room for a turn. To end then is no failure, as at a limit.

        Raises:
            EnvironmentBroken: the agent failed, and neither a limit nor the recipe accounts for that.
        """
        if self._task is None:
            raise RuntimeError("play() is called before reset()")
        folder = self.workspace.resolve()  # a sandbox has the folder, and no links that lead to it
        task_file, result_file, room = folder / "task.json", folder / "result.json", folder / "work"
        room.mkdir()
        task_file.write_bytes(self.given.task)
        variables = episode_variables(endpoint, (task_file, result_file, room))
        process = await self._started(task_file, room, variables, endpoint)
        ended = await until_ended(process, limited, f"the agent of task {self._task.id}")
        scores_errors = self._spec.on_agent_error == "score"
        was_limited = limited.done() or (ended.status != 0 and lacks_room())
        if ended.status != 0 and not was_limited and not scores_errors:
            words = self.provided.secrets.clean(ended.errors[-TOLD_OUTPUT:].strip())
            told = f"; the end of its standard error:\n{words}" if words else " without a word on its standard error"
            raise EnvironmentBroken(f"task {self._task.id}: the agent ended with exit status {ended.status}{told}")
        came_to_its_end = ended.status == 0 and not was_limited
        try:
            result = read_result(result_file)
        except EnvironmentBroken:
            if not (scores_errors or was_limited):  # the limit may have cut it off while it wrote
                raise
            result, came_to_its_end = AgentResult(), False
        if self._reward is None and result.reward is None and not came_to_its_end:
            return msgspec.structs.replace(result, reward=0.0)
        return await self._rewarded(result, ended.output)

    async def _rewarded(self, result: AgentResult, output: str) -> AgentResult:
        """Return the result with its reward, if the recipe computes one."""
        assert self._task is not None
        if self._reward is None:
            return result
        returned = self._reward(self._task, output.strip() if result.answer is None else result.answer)
        _, reward = await returned_reward(self._reward, returned)
        of_roles = {} if self._spec.sandbox else result.rewards  # the model may have written them
        return msgspec.structs.replace(result, reward=reward, rewards=of_roles)

    async def _started(self, task_file: Path, room: Path, variables: dict[str, str], endpoint: Endpoint) -> AgentProcess:
        """Start the process that plays the episode."""
        assert self._task is not None
        lasting = lasting_variables(self._spec.variables, self.secrets)
        if self._spec.function:
            host: FunctionHost = self.provided.shared  # which has the lasting variables
            return await host.play(task_file, room, {name: variables[name] for name in variables.keys() - lasting.keys()})
        words = with_interpreter(self._spec.command, interpreter(self._spec))
        command = [word.replace("{prompt}", self._task.question) for word in words]
        if self._spec.sandbox:
            sandbox, own = self.provided.shared, {**variables, **lasting}
            return SandboxedCommand.start(sandbox, self._spec, command, words, room, own, endpoint)
        return await CommandProcess.start(command, room, {**variables, **lasting})


def interpreter(spec: AgentEnvironmentConfig) -> str:
    """Return the Python that runs the agent."""
    return spec.python or sys.executable


def with_interpreter(command: Sequence[str], python: str) -> list[str]:
    """Return a command line in which the word ``python`` is the Python that runs the agent, whatever the ``PATH`` has."""
    return [python if word == "python" else word for word in command]


def lasting_variables(set_by_recipe: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that are the same in all episodes."""
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {**passed, "OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, **set_by_recipe, **secrets}


def episode_variables(endpoint: Endpoint, files: tuple[Path, Path, Path]) -> dict[str, str]:
    """Return the environment variables of an episode's own, which give way to those that last.

    Args:
        files: the task's file, the result's, and the working directory.
    """
    task_file, result_file, room = map(str, files)
    return {
        **{"HOME": room, "TMPDIR": room, "ASYNCRL_WORKSPACE": room},
        **{"ASYNCRL_TASK": task_file, "ASYNCRL_RESULT": result_file},
        **{"OPENAI_BASE_URL": endpoint.openai_url, "OPENAI_API_BASE": endpoint.openai_url},
        "ANTHROPIC_BASE_URL": endpoint.anthropic_url,
    }


def _told(task: Task, names: tuple[str, ...]) -> bytes:
    """Return the task file: what of a task the agent may see.

    Raises:
        EnvironmentBroken: the task lacks data that the recipe names.
    """
    missing = [name for name in names if name not in task.data]
    if missing:
        found = ", ".join(sorted(task.data)) or "none"
        raise EnvironmentBroken(f"task {task.id} has no data {missing[0]!r}, which environment.task_data names; it has {found}")
    messages = [_as_sent(message) for message in opening("", task.prompt)]
    shown = {"id": task.id, "prompt": task.question, "messages": messages, "data": {name: task.data[name] for name in names}}
    return msgspec.json.encode(shown)


def _as_sent(message: Message) -> dict[str, Any]:
    """Return a message as a client of chat completions sends it: the arguments of calls are text."""
    sent = message.as_template_input()
    for call in sent.get("tool_calls", ()):
        call["function"]["arguments"] = msgspec.json.encode(call["function"]["arguments"]).decode()
    return sent


_LARGEST_FILE = 1 << 20


def read_result(file: Path) -> AgentResult:
    """Read the result file; a result without anything if there is none.

    Raises:
        EnvironmentBroken: it cannot be read, or a number in it is none that can be trained on.
    """
    try:
        content = _content(file)
    except FileNotFoundError:
        return AgentResult()
    except OSError as error:
        raise EnvironmentBroken(f"the agent's result file cannot be read: {error.strerror}") from error
    if len(content) > _LARGEST_FILE:
        raise EnvironmentBroken(f"the agent's result file is larger than {_LARGEST_FILE} bytes")
    try:
        result = msgspec.json.decode(content, type=AgentResult)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EnvironmentBroken(
            f"the agent's result file is not what it must be: {error}; write JSON such as "
            '{"reward": 1.0, "rewards": {"sub": 0.5}, "answer": "42", "metrics": {"steps": 3}}, each key or none'
        ) from error
    result = _with_numbers(result)
    rewards = {**({} if result.reward is None else {"reward": result.reward}), **result.rewards}
    check_numbers("reward", rewards, LARGEST_REWARD)
    check_numbers("metric", result.metrics, 3.4e38)
    return result


def _with_numbers(result: AgentResult) -> AgentResult:
    """Return a result in which true and false are numbers."""
    return msgspec.structs.replace(
        result,
        reward=None if result.reward is None else float(result.reward),
        rewards={name: float(number) for name, number in result.rewards.items()},
        metrics={name: float(number) for name, number in result.metrics.items()},
    )


def _content(file: Path) -> bytes:
    """Read the beginning of a file that an agent has made: it may be a link to one that the agent could not read, or a pipe.

    Raises:
        OSError: it is no ordinary file.
    """
    with open(file, "rb", opener=_open_at_once) as reading:
        if not stat.S_ISREG(os.fstat(reading.fileno()).st_mode):
            raise OSError(0, "it is no ordinary file")
        return reading.read(_LARGEST_FILE + 1)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file for reading that is no link; whatever it is, nothing is waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def check_numbers(what: str, numbers: Mapping[str, float], largest: float) -> None:
    """Refuse numbers that are not finite, or too large.

    Raises:
        EnvironmentBroken: one of them is.
    """
    for name, number in numbers.items():
        if not math.isfinite(number) or abs(number) > largest:
            raise EnvironmentBroken(
                f"the agent's {what} {name!r} is {number}; it must be a number of at most {largest:g} in size"
            )
