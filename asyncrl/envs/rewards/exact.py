"""The reward of an answer that equals the expected text."""

from collections.abc import Iterable

from asyncrl.core.task import Task
from asyncrl.envs.rewards.base import Reward, expected_texts
from asyncrl.envs.stated_answer import stated_answer


class Exact(Reward):
    """1 if the answer equals the expected text, else 0. White space at both ends does not count.

    Where the answer has thoughts (until ``</think>``) or ``<answer>`` tags, what stands behind them or in the last tags may also
    be what equals the expected text.

    Args:
        key: where ``task.data`` holds the expected answer.
        ignore_case: whether capitals equal small letters.
    """

    def __init__(self, key: str = "answer", ignore_case: bool = False) -> None:
        self._key, self._ignore_case = key, ignore_case

    async def __call__(self, task: Task, answer: str) -> float:
        """Compare."""
        wanted, given = map(self._spellings, (expected_texts(task, self._key, "exact"), [answer]))
        return float(not wanted.isdisjoint(given))

    def _spellings(self, texts: Iterable[str]) -> set[str]:
        """What may be compared of texts: each as it is, and what it states."""
        spellings = {each for text in texts for each in (text.strip(), stated_answer(text))}
        return {each.casefold() for each in spellings} if self._ignore_case else spellings
