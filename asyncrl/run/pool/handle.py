"""One generator's actor, and the calls that the driver makes to it, each with its deadline."""

import asyncio
import os
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import ray

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import ComponentFailed, DeadlineExceeded, EventLoopBlocked, ProcessDied, ProcessUnreachable, first_error
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.generators import MAIN_POOL
from asyncrl.core.recipe.knobs import largest_running
from asyncrl.core.recipe.schema import DeadlinesConfig, Recipe
from asyncrl.envs.secrets import Secrets, read_secrets
from asyncrl.generators.completion import ScoredRow
from asyncrl.generators.evaluation import Evaluated, HeldOutTask
from asyncrl.generators.vllm.engine_node import EngineNode
from asyncrl.generators.worker import RENEWALS_PER_LEASE, GeneratorStatistics
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.probable_cause import explained
from asyncrl.run.host.ray_calls import ANSWER_DEADLINE_S, ask, watch
from asyncrl.run.judge_processes import NO_JUDGES, Judges
from asyncrl.run.nodes.model_folder import ModelFolder
from asyncrl.run.nodes.placed_processes import Places
from asyncrl.run.pool.follower_actor import RemoteFollower, follower_name
from asyncrl.run.pool.generator_actor import RemoteGenerator
from asyncrl.run.pool.generator_spec import GeneratorSpec
from asyncrl.run.reward.service_tokens import service_tokens

T = TypeVar("T")

AGAIN_S = 1.0
"""Seconds after which a process that could not be reached is called again."""


class GeneratorHandle:
    """The driver's handle of one generator: its process, and those with workers of its engine on further nodes.

    Every call but :meth:`run` has a deadline. A generator is gone when one of its processes is.

    Args:
        followers: the actors on further nodes, by name.

    Every call raises ``ProcessDied`` when the process or its event loop is gone, and what the generator itself raised otherwise.

    Attributes:
        worker: its name, which begins with that of its pool.
        nodes: Ray's ids of its nodes. Its process is on the first; the others have workers of its engine.
        at_once: how many episodes it may play at once when it begins.
    """

    def __init__(
        self,
        worker: WorkerId,
        actor: Any,
        deadlines: DeadlinesConfig,
        log: Path,
        nodes: Sequence[str],
        followers: Mapping[str, Any] = {},
    ) -> None:
        self.worker, self._actor, self._deadlines, self._log, self.nodes = worker, actor, deadlines, log, tuple(nodes)
        self._followers, self._ends = followers, dict[str, ray.ObjectRef[None]]()
        self.at_once = 1

    async def start(self) -> None:
        """Bring its engine up, with the weights of version 0."""
        # Longer than the deadline that the engine keeps itself, because its error says more.
        seconds = self._deadlines.start + ANSWER_DEADLINE_S
        remedy, first = "raise deadlines.start", EngineNode()
        if self._followers:
            first = await self._ask(self._actor.node.remote(), "find a port", seconds, remedy)
        with first_error():
            async with asyncio.TaskGroup() as starting:
                up = starting.create_task(
                    self._start_first(self._ask(self._actor.start.remote(self.at_once), "start", seconds, remedy))
                )
                for name, actor in self._followers.items():
                    starting.create_task(self._start_follower(name, actor, first, seconds, up))

    async def _start_first(self, starting: Coroutine[Any, Any, None]) -> None:
        try:
            await starting
        except ComponentFailed as error:
            if not self._followers or isinstance(error, ProcessDied):
                raise explained(error, self._log) from error
            raise ProcessDied(f"{error}; it may be that a further node of its engine was lost") from error

    async def _start_follower(self, name: str, actor: Any, first: EngineNode, seconds: float, up: "asyncio.Task[None]") -> None:
        asked, remedy = actor.start.remote(first), f"see {self._log.with_name(f'{name}.log')}; raise deadlines.start"
        await ask(asked, of=f"{name} to start", by="the driver", seconds=seconds, remedy=remedy)
        watching = asyncio.create_task(self._watch_follower(name, actor), name=name)
        try:
            await asyncio.wait({watching, up}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            watching.cancel()

    async def run(self) -> None:
        """Generate until stopped; returns at once if it was stopped before. Goes on after it was out of reach for a while."""

        async def run() -> None:
            while True:
                try:
                    return await watch(self._actor.run.remote(), of=self.worker)
                except ProcessUnreachable:  # it may go on generating; whether it answers says how long that is waited for
                    await asyncio.sleep(AGAIN_S)

        await self._while_it_answers(run())

    async def _watch_follower(self, name: str, actor: Any) -> NoReturn:
        while True:
            if (
                name not in self._ends
            ):  # one call for as long as it answers: a call that is awaited no longer goes on in the actor
                self._ends[name] = actor.run.remote()
            try:
                await watch(self._ends[name], of=f"{self.worker}, whose engine is on several nodes: {name}")
            except ProcessUnreachable:  # its node is watched by others
                self._ends.pop(name, None)
                await asyncio.sleep(AGAIN_S)

    async def _while_it_answers(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``. Meanwhile the process must answer a call that needs no work as often as it renews a lease."""
        working = asyncio.ensure_future(work)
        going_on = [asyncio.create_task(self._answer(), name=f"{self.worker} answering")]
        going_on += [asyncio.create_task(self._watch_follower(*each), name=f"{each[0]}") for each in self._followers.items()]
        try:
            await asyncio.wait({working, *going_on}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else next(each for each in going_on if each.done()).result()
        finally:
            for task in (working, *going_on):
                task.cancel()

    async def _answer(self) -> NoReturn:
        seconds = self._deadlines.lease
        while True:
            await self._answer_once(seconds)
            await asyncio.sleep(seconds / RENEWALS_PER_LEASE)

    async def _answer_once(self, seconds: float) -> None:
        ends, unreachable = time.monotonic() + seconds, None
        while True:
            try:
                return await self._ask(self._actor.answer.remote(), "answer", ends - time.monotonic())
            except ProcessUnreachable as error:
                if ends - time.monotonic() <= AGAIN_S:
                    raise
                unreachable = error
                await asyncio.sleep(AGAIN_S)
            except DeadlineExceeded as late:
                if unreachable is not None:
                    raise unreachable from late
                raise EventLoopBlocked(
                    f"{self.worker} did not answer for {seconds:g} s: its process was stopped, or code in it holds the "
                    "interpreter's lock (a regular expression can do so for hours, even in a thread); see "
                    f"{self._log}, which then names the code"
                ) from late

    async def load_publication(self, publication: Publication) -> int:
        """Load a publication; returns the fingerprint of what was loaded. Goes on after the process was out of reach."""
        what, seconds = f"{self.worker} to load version {publication.version}", self._deadlines.publish
        remedy = f"see {self._log}; raise deadlines.publish"

        async def load() -> int:
            async with deadline(seconds, waiter="the driver", owner=what, remedy=remedy):
                while True:
                    try:
                        return int(await watch(self._actor.load_publication.remote(publication), of=what))
                    except ProcessUnreachable:  # it may be loading; asked again, it tells what came of it
                        await asyncio.sleep(AGAIN_S)

        return await self._while_it_answers(load())

    async def score(self, rows: Sequence[Sequence[int]]) -> list[ScoredRow]:
        """Have its engine score ``rows`` beside what it samples."""
        return await self._ask(
            self._actor.score.remote(rows), "score a probe", self._deadlines.publish, "raise deadlines.publish"
        )

    async def evaluate(self, tasks: Sequence[HeldOutTask], version: PolicyVersion) -> list[Evaluated]:
        """Play the episodes of some tasks; ``version`` is being evaluated."""
        asked = self._actor.evaluate.remote(tasks, version)
        evaluating = self._ask(asked, "evaluate", self._deadlines.evaluation, "raise deadlines.evaluation")
        return await self._while_it_answers(evaluating)

    async def statistics(self) -> GeneratorStatistics:
        """Return the counters since its engine was ready."""
        return await self._ask(self._actor.statistics.remote(), "count", ANSWER_DEADLINE_S)

    async def stop(self) -> None:
        """Make :meth:`run` return."""
        await self._ask(self._actor.stop.remote(), "stop", ANSWER_DEADLINE_S)

    async def bound(self, episodes: int) -> None:
        """Have it play at most so many episodes at once from here on."""
        await self._ask(self._actor.bound.remote(episodes), "bound its episodes", ANSWER_DEADLINE_S)

    async def hand_back(self) -> None:
        """Have it lease nothing more and hand all its episodes back; then :meth:`run` returns."""
        seconds = self._deadlines.shutdown + ANSWER_DEADLINE_S
        await self._ask(self._actor.hand_back.remote(), "hand back its episodes", seconds)

    async def close(self, seconds: float) -> None:
        """Shut its engine down."""
        await self._ask(self._actor.close.remote(), "close", seconds, "it is killed")

    def kill(self) -> None:
        """End its processes, those that there still are; the engine's processes end with them."""
        for actor in (self._actor, *self._followers.values()):
            ray.kill(actor)

    async def _ask(self, answer: "ray.ObjectRef[T]", what: str, seconds: float, remedy: str = "it may be overloaded") -> T:
        remedy = f"see {self._log}; {remedy}"
        return await ask(answer, of=f"{self.worker} to {what}", by="the driver", seconds=seconds, remedy=remedy)


def make_generator(
    recipe: Recipe,
    model: ModelFolder,
    pool: str,
    number: int,
    folder: RunFolder,
    places: Places,
    buffer: Any | None = None,
    judges: Judges = NO_JUDGES,
) -> GeneratorHandle:
    """Make the process of generator ``number``, which writes its log and the episodes of evaluations to ``folder``.

    Args:
        model: the Hugging Face folder that has the weights of version 0.
        pool: the name of its pool.
        places: has a place for it, which is its own until it leaves.
        buffer: the actor of the run's buffer; None for a generator that only evaluates.
        judges: what judges finished episodes.
    """
    worker = WorkerId(f"{'generator' if pool == MAIN_POOL else pool}-{number}")
    where = places.take(worker, pool)
    of_pool = msgspec.structs.replace(recipe, generators=largest_running(recipe).generators.by_pool[pool])
    engines_on = places.on_node_of(recipe.generators.by_pool)
    spec = GeneratorSpec(worker, number, engines_on[where.node])
    secrets = read_secrets(recipe.environment, os.environ)
    if buffer is not None:
        secrets = Secrets({**secrets, **service_tokens(recipe, os.environ)})
    actor = RemoteGenerator.options(max_concurrency=1000, **where.options).remote(
        of_pool, model, buffer, judges, spec, secrets, folder
    )
    followers = {}
    for node, place in enumerate(where.apart, 1):
        there = GeneratorSpec(worker, number, engines_on[place.node])
        followers[follower_name(spec, node)] = RemoteFollower.options(max_concurrency=10, **place.options).remote(
            of_pool, model, there, buffer is not None, node, folder
        )
    nodes = [place.node for place in (where, *where.apart)]
    return GeneratorHandle(worker, actor, recipe.deadlines, folder.generator_log(worker), nodes, followers)
