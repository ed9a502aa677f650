"""A generator without a process: it dies when told, and everything that happens to it is written down in order."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from asyncrl.core.errors import ProcessDied
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.measures.time_split import GeneratorTime
from asyncrl.core.publication import Publication, WeightFile
from asyncrl.core.trajectory import StopReason
from asyncrl.generators.completion import ScoredRow
from asyncrl.generators.evaluation import Evaluated, EvaluationResult, HeldOutTask
from asyncrl.generators.worker import GeneratorStatistics

T = TypeVar("T")


def publication(version: int) -> Publication:
    return Publication(
        version=PolicyVersion(version),
        files=(WeightFile(f"side-{version % 2}", "", 0),),
        shards=(),
        fingerprints=(),
        fingerprint=1000 + version,
    )


class SameNode:
    """Everything lies on the node where it is needed."""

    async def fetch_to_node(self, publication: Publication, node: str) -> Publication:
        return publication

    async def check_reach(self, newest: Publication, node: str) -> None:
        return


class FakeGenerator:
    """``may_start``, ``may_load``, ``may_evaluate`` and ``may_count`` hold it back while they are not set."""

    def __init__(self, number: int, log: list[str], node: str = "") -> None:
        self.worker, self._log, self.node = WorkerId(f"generator-{number}"), log, node
        self._dead, self._stop = asyncio.Event(), asyncio.Event()
        self.may_start, self.may_load, self.may_evaluate = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_count = asyncio.Event()
        for gate in (self.may_start, self.may_load, self.may_evaluate, self.may_count):
            gate.set()
        self.loading: Publication | None = None
        self.loaded: list[int] = []
        self.corrupts = False
        self.tokens = 0
        self._say("made")

    @property
    def nodes(self) -> list[str]:
        return [self.node]

    @property
    def alive(self) -> bool:
        return not self._dead.is_set()

    def die(self) -> None:
        self._dead.set()

    async def start(self) -> None:
        await self._while_alive(self.may_start.wait())
        self._say("up")

    async def run(self) -> None:
        if not self._dead.is_set():
            self._say("runs")
        await self._while_alive(self._stop.wait())

    async def load_publication(self, publication: Publication) -> int:
        self.loading = publication
        try:
            await self._while_alive(self.may_load.wait())
        finally:
            self.loading = None
        self.loaded.append(publication.version)
        self._say(f"loaded {publication.version}")
        return publication.fingerprint + self.corrupts

    async def evaluate(self, tasks: Sequence[HeldOutTask], version: PolicyVersion) -> list[Evaluated]:
        await self._while_alive(self.may_evaluate.wait())
        loaded = float(self.loaded[-1] if self.loaded else 0)
        return [EvaluationResult(each.task.id, loaded, StopReason.ENVIRONMENT_DONE, turns=1) for each in tasks]

    async def statistics(self) -> GeneratorStatistics:
        await self._while_alive(self.may_count.wait())
        count = self.tokens
        return GeneratorStatistics(
            count,
            Counter({PolicyVersion(0): count}),
            time=GeneratorTime(sampling=count * 1.0, nothing=count * 1.0),
            finished_episodes=count,
        )

    async def score(self, rows: Sequence[Sequence[int]]) -> list[ScoredRow]:
        await self._while_alive(self.may_count.wait())
        return []

    async def bound(self, episodes: int) -> None:
        self._say(f"plays {episodes}")

    async def hand_back(self) -> None:
        await self._while_alive(asyncio.sleep(0))
        self._say("hands back")
        self._stop.set()

    async def stop(self) -> None:
        await self._while_alive(asyncio.sleep(0))
        self._stop.set()

    async def close(self, seconds: float) -> None:
        await self._while_alive(asyncio.sleep(0))
        self._say("closed")

    def kill(self) -> None:
        self._dead.set()

    def _say(self, what: str) -> None:
        self._log.append(f"{self.worker} {what}")

    async def _while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        working, dying = asyncio.create_task(work), asyncio.create_task(self._dead.wait())
        try:
            await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
            if self._dead.is_set():
                raise ProcessDied(f"{self.worker}: its process died (killed)")
            return working.result()
        finally:
            working.cancel()
            dying.cancel()
