"""Chooses what looks at a generator's episodes as a teacher: engines of the run, whose client is here, or a server."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import ComponentFailed, DeadlineExceeded, FailureKind, ProcessDied, ScoringFailed
from asyncrl.core.recipe.schema import Recipe
from asyncrl.envs.secrets import Secrets
from asyncrl.generators.scoring import Teaching
from asyncrl.run.buffer.request_coalescer import RequestCoalescer
from asyncrl.run.host.ray_calls import ask
from asyncrl.run.teacher.remote_teacher import RemoteTeacher

_REMEDY = "see logs/teacher-*.log; raise deadlines.reward, or algorithm.teacher.engines"
_CALLS = 4
"""Calls of an engine that overlap, so that it has the next rows while it answers for others."""


def make_teaching(recipe: Recipe, engines: Sequence[Any], secrets: Secrets, client: str) -> Teaching | None:
    """Make what has a generator's episodes looked at by a teacher; None if the recipe has none.

    Args:
        engines: the actors of the teacher's engines; none where it is on a server.
        secrets: have the server's token, if it wants one.
        client: the generator's name.
    """
    teacher, seconds = recipe.algorithm.teacher, recipe.deadlines.reward
    if teacher is None:
        return None
    if teacher.url is None:
        return Teaching(EngineTeacher(engines, client, seconds))
    return Teaching(RemoteTeacher(teacher, secrets, client, seconds))


class EngineTeacher:
    """Asks the engines of a run's own teacher; see :class:`asyncrl.generators.scoring.Teacher`.

    A row goes to the engine that has the fewest tokens of this client to compute.

    Args:
        client: the asking generator's name, for error messages.
        deadline_s: how long the answer for a row may take.
    """

    def __init__(self, engines: Sequence[Any], client: str, deadline_s: float) -> None:
        self._client, self._deadline_s = client, deadline_s
        self._rows: list[RequestCoalescer[np.ndarray, np.ndarray]] = [
            RequestCoalescer(partial(self._ask, engine, f"teacher-{number}"), calls=_CALLS, for_nobody=False)
            for number, engine in enumerate(engines)
        ]
        self._waiting = [0] * len(engines)

    async def logprobs(self, row: np.ndarray) -> np.ndarray:
        """Return the log-probabilities of a row's tokens but the first.

        Raises:
            ScoringFailed: they did not come in time.
            ComponentFailed: an engine's process died.
        """
        number = min(range(len(self._rows)), key=self._waiting.__getitem__)
        self._waiting[number] += len(row)
        try:
            async with deadline(self._deadline_s, waiter=self._client, owner=f"teacher-{number}", remedy=_REMEDY):
                return await self._rows[number].send(row)
        except DeadlineExceeded as late:
            raise ScoringFailed(FailureKind.INFRASTRUCTURE, str(late)) from late
        finally:
            self._waiting[number] -= len(row)

    async def _ask(self, engine: Any, name: str, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        of = f"{name} to look at {len(rows)} trajectories"
        try:
            return await ask(engine.logprobs.remote(rows), of=of, by=self._client, seconds=self._deadline_s, remedy=_REMEDY)
        except ProcessDied as death:  # ProcessDied would mean that this generator died, and would get it replaced
            raise ComponentFailed(str(death)) from death
