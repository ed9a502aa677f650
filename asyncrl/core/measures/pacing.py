"""Finds the smallest pipeline depth at which learner and engines do not both wait.

While both wait, the pipeline depth holds them up: the learner waits for the last episodes of a batch, and no new ones
may begin. One more batch outstanding fills that time, and makes tokens one policy version older. The staleness bound
does not change.
"""

from collections import deque

from asyncrl.core.measures.units import percent

WINDOW = 4
"""Training steps that are averaged."""
SETTLING = 2
"""Training steps after a change that are ignored."""
TOO_MUCH = 0.05
"""Share of the time in which both sides may wait before the depth grows."""
NOTHING = 0.01
"""Share of the time in which both sides wait below which a smaller depth is tried."""
PATIENCE = 32
"""Training steps without such waits after which a smaller depth is tried; doubled each time that it was too small."""


class Pacing:
    """The pipeline depth of a run, step by step.

    Args:
        depth: the depth to begin with.
        largest: the largest depth that the recipe allows. Depth 0, where both sides always wait in turn, is never chosen.
    """

    def __init__(self, depth: int, largest: int) -> None:
        self.depth = depth
        self._largest, self._patience = largest, PATIENCE
        self.reason = ""
        """Why the depth changed the last time."""
        self._tried = False
        self._begin()

    def _begin(self) -> None:
        self._settling, self._quiet = SETTLING, 0
        self._window: deque[float] = deque(maxlen=WINDOW)

    def step(self, both_wait: float) -> bool:
        """Take in one training step, and return whether :attr:`depth` has changed.

        Args:
            both_wait: share of the step, in [0, 1], in which the learner waited for a batch and engines for tickets.
        """
        if self._settling:
            self._settling -= 1
            return False
        self._window.append(both_wait)
        if len(self._window) < WINDOW:
            return False
        mean = sum(self._window) / WINDOW
        if mean > TOO_MUCH and self.depth < self._largest:
            if self._tried:
                self._patience *= 2
            self._change(1)
            self.reason = f"learner and engines both waited, for {percent(mean)} of the last {WINDOW} training steps"
            return True
        self._quiet = self._quiet + 1 if mean < NOTHING else 0
        if self._quiet >= PATIENCE:
            self._tried = False  # this depth is large enough
        if self._quiet >= self._patience and self.depth > 1:
            self._change(-1)
            self.reason = f"learner and engines have not both waited for {self._patience} training steps"
            return True
        return False

    def _change(self, by: int) -> None:
        self.depth += by
        self._tried = by < 0
        self._begin()
