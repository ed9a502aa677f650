"""The data-parallel ranks of one engine: vLLM has a process for each, and each samples requests of its own.

Most engines have one rank. What always holds: all ranks are asked together, and all have answered, or the engine is dead, before
anybody goes on; what one conversation needs is sampled by one rank, which has its keys and values.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asyncrl.core.errors import ProcessDied

if TYPE_CHECKING:
    from vllm import AsyncLLMEngine

_ALIVE_S = 1.0
"""At most so many seconds between two looks at whether an engine that owes an answer is alive."""


class EngineRanks:
    """The ranks of the engine behind ``llm``, numbered from 0, and how many users each of them has.

    Args:
        name: name of the engine's owner, for errors.
        answer_s: seconds that a rank may take to answer a question.
    """

    def __init__(self, llm: "AsyncLLMEngine", name: str, answer_s: float) -> None:
        self._client, self._name, self._answer_s = llm.engine_core, name, answer_s
        self._users = [0] * len(self._client.core_engines)
        if self.count > 1:
            self._client._ensure_stats_update_task()  # while the socket that it connects to still has a name

    @property
    def count(self) -> int:
        """How many ranks there are."""
        return len(self._users)

    @contextmanager
    def used(self) -> Iterator[int]:
        """Return the context of an episode or a single request; its value is the rank, one that has the fewest users."""
        rank = self._users.index(min(self._users))
        self._users[rank] += 1
        try:
            yield rank
        finally:
            self._users[rank] -= 1

    async def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method in the process of each rank. vLLM leaves such a call unanswered when that process dies.

        Without the coordinator, ranks answer but wait for each other for ever as soon as one has something to compute.

        Returns:
            The answers, by rank.

        Raises:
            ProcessDied: a rank's process or their coordinator died, or a rank did not answer in time, which is as good as dead.
            Exception: what the method raised in the first rank in which it raised anything.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        client, ends = self._client, asyncio.get_running_loop().time() + self._answer_s
        calls = [client._call_utility_async(method, *arguments, engine=process) for process in client.core_engines]
        asked = [asyncio.ensure_future(call) for call in calls]
        try:
            while (await asyncio.wait(asked, timeout=_ALIVE_S))[1] and not self._dead():
                if asyncio.get_running_loop().time() > ends:
                    raise ProcessDied(
                        f"{self._name}: the vLLM engine did not answer {method} within {self._answer_s:g} s; see its log; raise "
                        "deadlines.publish if the model is that large"
                    )
            if self._dead():
                raise ProcessDied(f"the vLLM engine died during {method}; see its log")
            for error in [answer.exception() for answer in asked]:
                if error is not None:
                    raise error
            return [answer.result() for answer in asked]
        except EngineDeadError as error:
            raise ProcessDied(f"the vLLM engine died during {method}; see its log") from error
        finally:
            for answer in asked:
                answer.cancel()

    def _dead(self) -> bool:
        """Whether a process of the engine has ended, be it that of a rank or the coordinator."""
        resources = self._client.resources
        return resources.engine_dead or (resources.coordinator is not None and not resources.coordinator.proc.is_alive())
