"""The reward of an answer that equals the expected text."""

from asyncrl.core.task import Task
from asyncrl.envs.rewards.base import Reward, expected_texts


class Exact(Reward):
    """1 if the answer equals the expected text, else 0. White space at both ends does not count.

    Args:
        key: where ``task.data`` holds the expected answer.
        ignore_case: whether capitals equal small letters.
    """

    def __init__(self, key: str = "answer", ignore_case: bool = False) -> None:
        self._key, self._ignore_case = key, ignore_case

    async def __call__(self, task: Task, answer: str) -> float:
        """Compare."""
        wanted, given = [each.strip() for each in expected_texts(task, self._key, "exact")], answer.strip()
        if self._ignore_case:
            wanted, given = [each.casefold() for each in wanted], given.casefold()
        return float(given in wanted)
