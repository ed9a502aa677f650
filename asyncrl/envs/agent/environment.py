"""Plays an episode by a command: a program that asks for the model's turns over HTTP, and knows nothing of training.

What always holds: the program is told where its model is by the environment variables that the libraries of OpenAI and Anthropic
read; it sees the task, but not what it is judged by; nothing that it started outlives the episode; and what it does wrong is told
with the end of its standard error.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.chat_prompt import opening
from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.messages import Message
from asyncrl.core.recipe.environment import AgentEnvironmentConfig
from asyncrl.core.reward_range import LARGEST_REWARD
from asyncrl.core.task import Task
from asyncrl.envs.agent.result import check_numbers, read_result
from asyncrl.envs.base import Action, Observation, StepResult
from asyncrl.envs.played_by_agent import AGENT_ENDS_WITHIN_S, AgentResult, Endpoint, PlayedByAgent
from asyncrl.envs.rewards.load import RewardFunction

KEY = "asyncrl"
"""The key that agents are given: the gateway asks for none, as an episode's address is secret."""
_PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "NODE_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Environment variables of the worker that agents get."""
_KEEP = (
    "import os, sys; sys.path[:] = sys.argv.pop(1).split(os.pathsep); "
    "from asyncrl.envs.agent.keeper import main; sys.exit(main(sys.argv[1:]))"
)
"""Runs the keeper, whatever environment variables the agent has."""
_MOST_OUTPUT = 1 << 20
_TOLD_OUTPUT = 2000
"""Characters of standard error that are shown where an agent failed."""


class AgentEnvironment(PlayedByAgent):
    """The environment of one episode that a command plays.

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

    async def play(self, endpoint: Endpoint, limited: "asyncio.Future[Any]") -> AgentResult:
        """Run the agent to its end, and return its result, without a reward if it ended well and nobody gave one.

        Args:
            limited: is done if the episode reaches a limit. The agent, whose requests are then refused, has
                :data:`AGENT_ENDS_WITHIN_S` to end by itself.

        Raises:
            EnvironmentBroken: the agent failed, and neither a limit nor the recipe accounts for that.
        """
        if self._task is None:
            raise RuntimeError("play() is called before reset()")
        folder = self.workspace
        task_file, result_file, room = folder / "task.json", folder / "result.json", folder / "work"
        room.mkdir()
        task_file.write_bytes(_told(self._task, self._spec.task_data))
        variables = self._variables(endpoint, task_file, result_file, room)
        status, output, errors = await self._run(room, variables, limited)
        if status != 0 and not limited.done() and self._spec.on_agent_error == "fail":
            words = self.provided.secrets.clean(errors[-_TOLD_OUTPUT:].strip())
            told = f"; the end of its standard error:\n{words}" if words else " without a word on its standard error"
            raise EnvironmentBroken(f"task {self._task.id}: the agent ended with exit status {status}{told}")
        result = read_result(result_file)
        if self._reward is None and result.reward is None and (status != 0 or limited.done()):
            return msgspec.structs.replace(result, reward=0.0)  # it did not come to its end
        return await self._rewarded(result, output)

    async def _rewarded(self, result: AgentResult, output: str) -> AgentResult:
        """Return the result with its reward, if the recipe computes one."""
        assert self._task is not None
        if self._reward is None:
            return result
        found = self._reward(self._task, output.strip() if result.answer is None else result.answer)
        value = found if isinstance(found, float | int | Mapping) else await found
        parts = dict(value) if isinstance(value, Mapping) else {"reward": float(value)}
        check_numbers("reward", parts, LARGEST_REWARD)
        return msgspec.structs.replace(result, reward=float(sum(parts.values())))

    def _variables(self, endpoint: Endpoint, task_file: Path, result_file: Path, room: Path) -> dict[str, str]:
        """Return all environment variables of the agent."""
        return {
            **{name: os.environ[name] for name in _PASSED if name in os.environ},
            **{"HOME": str(room), "TMPDIR": str(room), "ASYNCRL_WORKSPACE": str(room)},
            **{"ASYNCRL_TASK": str(task_file), "ASYNCRL_RESULT": str(result_file)},
            **{"OPENAI_BASE_URL": endpoint.openai_url, "OPENAI_API_BASE": endpoint.openai_url, "OPENAI_API_KEY": KEY},
            **{"ANTHROPIC_BASE_URL": endpoint.anthropic_url, "ANTHROPIC_API_KEY": KEY},
            **self._spec.variables,
            **self.secrets,
        }

    async def _run(self, room: Path, variables: dict[str, str], limited: "asyncio.Future[Any]") -> tuple[int, str, str]:
        """Run the command; returns its exit status, standard output, and the end of its standard error."""
        assert self._task is not None
        python = {"python": sys.executable}
        command = [python.get(word, word) for word in self._spec.command]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", _KEEP, os.pathsep.join(sys.path), str(os.getpid())),
            *(word.replace("{prompt}", self._task.question) for word in command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=room,
            env=variables,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        reading = asyncio.gather(_first(process.stdout), _last(process.stderr), process.wait())
        try:
            either: set[asyncio.Future[Any]] = {reading, limited}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                await asyncio.wait({reading}, timeout=AGENT_ENDS_WITHIN_S)
        finally:
            if not reading.done():
                with suppress(ProcessLookupError):
                    process.terminate()
                await asyncio.shield(reading)
        output, errors, status = reading.result()
        return status, output, errors


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


async def _first(stream: asyncio.StreamReader) -> str:
    """Read a stream to its end; returns its beginning."""
    kept = bytearray()
    while part := await stream.read(1 << 16):
        kept += part[: _MOST_OUTPUT - len(kept)]
    return kept.decode(errors="replace")


async def _last(stream: asyncio.StreamReader) -> str:
    """Read a stream to its end; returns its end."""
    kept = bytearray()
    while part := await stream.read(1 << 16):
        kept = (kept + part)[-4 * _TOLD_OUTPUT :]
    return kept.decode(errors="replace")
