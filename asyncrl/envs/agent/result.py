"""Reads what an agent says of its episode: a file that it may write, as JSON."""

import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from asyncrl.core.errors import EnvironmentBroken
from asyncrl.core.reward_range import LARGEST_REWARD
from asyncrl.envs.played_by_agent import AgentResult

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
