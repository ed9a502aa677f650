"""Reads what an agent says of its episode: a file that it may write, as JSON."""

import math
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
        with file.open("rb") as opened:
            content = opened.read(_LARGEST_FILE + 1)
    except FileNotFoundError:
        return AgentResult()
    except OSError as error:
        raise EnvironmentBroken(f"the agent's result file cannot be read: {error.strerror}") from error
    if len(content) > _LARGEST_FILE:
        raise EnvironmentBroken(f"the agent's result file is larger than {_LARGEST_FILE} bytes")
    try:
        result = msgspec.json.decode(content, type=AgentResult)
    except msgspec.DecodeError as error:
        raise EnvironmentBroken(
            f"the agent's result file is not what it must be: {error}; write JSON such as "
            '{"reward": 1.0, "rewards": {"sub": 0.5}, "answer": "42", "metrics": {"steps": 3}}, each key or none'
        ) from error
    rewards = {**({} if result.reward is None else {"reward": result.reward}), **result.rewards}
    check_numbers("reward", rewards, LARGEST_REWARD)
    check_numbers("metric", result.metrics, 3.4e38)
    return result


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
