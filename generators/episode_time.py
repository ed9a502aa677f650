"""The time of one episode: a deadline for what the policy does, and one of the same length for scoring its final answer.

What always holds: an episode whose answer came in time is never cut off because its reward comes late, since that is not the
policy's doing. What becomes of a reward that is late even so is for the caller to say: see :attr:`EpisodeTime.scoring`.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class EpisodeTime:
    """The deadlines of an episode that begins now.

    Args:
        seconds: how long the episode may take without the scoring of its answer, and how long that may take.

    Attributes:
        scope: the context in which the episode is played; raises ``TimeoutError`` at the deadline.
        scoring: whether the answer is being scored, or was when the deadline passed.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.scope = asyncio.timeout(seconds)
        self.scoring = False

    @contextmanager
    def scored(self) -> Iterator[None]:
        """Give what is done in this context its own time. If the episode goes on afterwards, so does its own deadline."""
        ends = self.scope.when()
        self.scope.reschedule(asyncio.get_running_loop().time() + self._seconds)
        self.scoring = True
        yield
        self.scoring = False
        self.scope.reschedule(ends)
