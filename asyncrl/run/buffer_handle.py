"""The buffer's actor as its clients see it: each call bounded and named, but waiting for room on a full disk does not count."""

from collections.abc import Callable
from typing import Any

from asyncrl.core.errors import ComponentFailed, ProcessDied
from asyncrl.run.asking import ANSWER_DEADLINE_S, ask, ask_buffer

_REMEDY = "its actor is overloaded; see logs/buffer.log"


class BufferHandle:
    """Calls of one client.

    Args:
        actor: the buffer's Ray handle.
        client: who calls, for error messages.
        note: told why a call has to wait for long, and when it goes on.
    """

    def __init__(self, actor: Any, client: str, note: Callable[[str], None]) -> None:
        self._actor, self._client, self._note = actor, client, note
        self._pause = ""

    async def call(self, method: str, *arguments: Any, seconds: float = ANSWER_DEADLINE_S) -> Any:
        """What the buffer's ``method`` answers.

        Raises:
            DeadlineExceeded: no answer for ``seconds`` in which the buffer was not paused.
            ComponentFailed: the buffer died, which no other can make up for.
        """
        answer = getattr(self._actor, method).remote(*arguments)
        of = f"the buffer ({method})"
        try:
            result = await ask_buffer(
                answer, paused=self._paused, on_pause=self._paused_by, of=of, by=self._client, seconds=seconds, remedy=_REMEDY
            )
        except ProcessDied as death:
            raise ComponentFailed(str(death)) from death
        if self._pause:
            self._pause = ""
            self._note("There is room again: the run goes on")
        return result

    async def _paused(self) -> str:
        asked = self._actor.statistics.remote()
        of = "the buffer (statistics)"
        statistics = await ask(asked, of=of, by=self._client, seconds=ANSWER_DEADLINE_S, remedy=_REMEDY)
        return str(statistics.paused)

    def _paused_by(self, reason: str) -> None:
        if reason != self._pause:
            self._pause = reason
            self._note(f"Paused: {reason}")
