"""Carries out the protocol of publications on the generators of a run; :mod:`asyncrl.weights.delivery_rules` says what always
holds.

A generator that dies, misses a deadline or cannot do a step is reported as lost, and the others go on. If a generator proves that
what it has loaded is not what was published, nothing is delivered any more, and everybody who waits here gets the error.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import (
    ComponentFailed,
    DeadlineExceeded,
    NodeFull,
    ProcessDied,
    WeightMismatch,
    WeightsOutOfReach,
    first_error,
)
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.schema import DeadlinesConfig
from asyncrl.run.pool.handle import GeneratorHandle
from asyncrl.run.publications.transport import PublicationTransport
from asyncrl.weights.delivery_rules import Deliveries, Step
from asyncrl.weights.shm.memory_file import MemoryFull

logger = logging.getLogger(__name__)

_DOING = {Step.NONE: "about to fetch it", Step.FETCH: "fetching", Step.LOAD: "loading"}


class WeightDelivery:
    """Brings each publication to every generator that has joined, one step after the other, side by side.

    Args:
        transport: brings publications to the generators' nodes; None if nothing is ever published.
        lost: is called for each generator that died or was too late, once.
        note: shows a line to the user.
        clock: returns the time in seconds; must never go back.
    """

    def __init__(
        self,
        transport: PublicationTransport | None,
        deadlines: DeadlinesConfig,
        lost: Callable[[GeneratorHandle, ProcessDied], None],
        note: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._transport, self._deadlines, self._lost, self._note = transport, deadlines, lost, note
        self._protocol = Deliveries(deadlines.straggler, clock)
        self._generators: dict[WorkerId, GeneratorHandle] = {}
        self._steps: dict[WorkerId, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._newest: Publication | None = None
        self._failure: BaseException | None = None
        self._noted: set[WorkerId] = set()
        self._overlooked: set[WorkerId] = set()

    def join(self, generator: GeneratorHandle, *, waited_for: bool) -> None:
        """Deliver to ``generator`` from now on, beginning with the newest publication.

        Args:
            waited_for: whether the others wait for it from the next publication on.
        """
        self._generators[generator.worker] = generator
        self._protocol.join(generator.worker, *generator.nodes, waited_for=waited_for)
        self._go_on()

    def leave(self, worker: WorkerId) -> None:
        """Deliver nothing to a generator any more. Nothing happens if it has left."""
        self._generators.pop(worker, None)
        if (step := self._steps.pop(worker, None)) is not None:
            step.cancel()
        self._protocol.leave(worker)
        self._go_on()

    def overlook(self, worker: WorkerId) -> None:
        """Wait no longer for a generator whose node does not answer; it catches up when it can."""
        self._overlooked.add(worker)
        self._protocol.overlook(worker)
        self._go_on()

    async def deliver(self, publication: Publication) -> None:
        """Have every generator load ``publication``; returns when its version may be published.

        Raises:
            WeightMismatch: what a generator has loaded is not what was published.
        """
        self._protocol.announce(publication)
        self._newest = publication
        self._go_on()
        while not self._protocol.acknowledged_by_all:
            await self._change(self._protocol.wait_s)
        self._note_those_behind(publication.version)

    async def check_reach(self, generator: GeneratorHandle) -> None:
        """Check that publications can come to the nodes of a generator that has not joined yet.

        Raises:
            WeightsOutOfReach: they cannot.
            ProcessDied: a node did not say in time, or cannot be asked.
        """
        if self._transport is None or self._newest is None:
            return
        for node in generator.nodes:
            try:
                await self._transport.check_reach(self._newest, node)
            except WeightsOutOfReach as error:
                raise WeightsOutOfReach(f"{generator.worker}: {error}", node) from error
            except (ComponentFailed, DeadlineExceeded) as error:
                raise ProcessDied(f"{generator.worker}: it is not known whether weights come to its node: {error}") from error

    async def caught_up(self, generator: GeneratorHandle) -> PolicyVersion | None:
        """Wait until a generator that has joined has loaded a publication, if there was any; return its version.

        Raises:
            ProcessDied: it died, or was too late.
        """
        worker = generator.worker
        while self._protocol.version(worker) is None and self._protocol.newest is not None:
            if worker not in self._generators:
                raise ProcessDied(f"{worker} died before it had caught up")
            await self._change()
        return self._protocol.version(worker)

    def version(self, worker: WorkerId) -> PolicyVersion | None:
        """The version that a generator has acknowledged last; None if none, or if it has left."""
        return self._protocol.version(worker)

    def is_current(self, worker: WorkerId) -> bool:
        """Whether a generator has the newest version and nothing under way."""
        return self._protocol.is_current(worker)

    async def hold(self, workers: Sequence[WorkerId]) -> None:
        """Have generators keep the version that they have; returns when they load nothing any more."""
        for worker in workers:
            if worker in self._generators:
                self._protocol.hold(worker)
        while any(self._protocol.is_busy(worker) for worker in workers):
            await self._change()

    def release(self, workers: Sequence[WorkerId]) -> None:
        """Deliver to these generators again; they go on with the newest publication."""
        for worker in workers:
            self._protocol.release(worker)
        self._go_on()

    async def may_write(self) -> frozenset[PolicyVersion]:
        """Wait until the ranks have a place to write one more version to; return the versions that they must not overwrite."""
        owner = f"engines that still read versions {', '.join(map(str, sorted(self._protocol.read)))}"
        seconds, remedy = 3 * self._deadlines.publish, "see their logs; lower deadlines.publish to have them replaced sooner"
        async with deadline(seconds, waiter="the learner", owner=owner, remedy=remedy):
            while not self._protocol.may_write:
                await self._change()
        return self._protocol.read

    async def failure(self) -> None:
        """Raise the error that ends all deliveries, as soon as there is one."""
        while True:
            await self._change()

    def close(self) -> None:
        """End what is under way."""
        for worker in list(self._generators):
            self.leave(worker)

    def _go_on(self) -> None:
        """Have every generator begin with what is next for it."""
        for worker, generator in self._generators.items():
            if worker not in self._steps and (publication := self._protocol.begin(worker)) is not None:
                name = f"{worker} getting version {publication.version}"
                step = self._steps[worker] = asyncio.create_task(self._bring(generator, publication), name=name)
                step.add_done_callback(self._ended)
        self._changed.set()

    async def _bring(self, generator: GeneratorHandle, publication: Publication) -> None:
        worker = generator.worker
        try:
            local = await self._fetch(generator, publication)
            self._protocol.fetched(worker, local)
            self._protocol.acknowledged(worker, await self._load(generator, local))
            self._overlooked.discard(worker)
        except DeadlineExceeded as late:  # a frozen engine would never end by itself
            self._is_lost(generator, ProcessDied(str(late)))
        except ProcessDied as death:
            self._is_lost(generator, death)
        else:
            del self._steps[worker]
        self._go_on()

    def _ended(self, step: "asyncio.Task[None]") -> None:
        if not step.cancelled() and (error := step.exception()) is not None:
            self._failure = error
            self._changed.set()

    async def _load(self, generator: GeneratorHandle, publication: Publication) -> int:
        try:
            return await generator.load_publication(publication)
        except WeightMismatch as error:  # nobody knows what weights it has, or it keeps older ones
            raise ProcessDied(f"{generator.worker}: {error}") from error

    def _is_lost(self, generator: GeneratorHandle, death: ProcessDied) -> None:
        del self._steps[generator.worker]
        self.leave(generator.worker)
        self._lost(generator, death)

    async def _fetch(self, generator: GeneratorHandle, publication: Publication) -> Publication:
        if self._transport is None:
            raise RuntimeError(
                f"version {publication.version} is published in a pool that was made without a way for publications"
            )
        try:
            with first_error():
                async with asyncio.TaskGroup() as fetching:
                    of_nodes = [
                        fetching.create_task(self._transport.fetch_to_node(publication, node)) for node in generator.nodes
                    ]
            return for_engine([each.result() for each in of_nodes])
        except (ComponentFailed, DeadlineExceeded) as error:
            problem = f"{generator.worker}: version {publication.version} did not reach its node: {error}"
            if isinstance(error, MemoryFull):
                raise NodeFull(problem, sum(file.size for file in publication.files)) from error
            raise ProcessDied(problem) from error

    async def _change(self, seconds: float | None = None) -> None:
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        if self._failure is not None:
            raise self._failure

    def _note_those_behind(self, version: PolicyVersion) -> None:
        for worker, step in self._protocol.behind:
            remark = (
                f"{worker} does not have version {version} yet (it is {_DOING[step]}): the others go on, and it gets no tickets "
                f"until it has caught up; raise deadlines.straggler ({self._deadlines.straggler:g} s) to have them wait longer"
            )
            logger.warning("%s", remark)
            if worker not in self._noted | self._overlooked:
                self._noted.add(worker)
                self._note(remark)


def for_engine(of_nodes: Sequence[Publication]) -> Publication:
    """Return what an engine loads of a publication that was fetched to each of its nodes, the first first.

    What ranks broadcast to one of them, the workers of all take, since they are in one group.
    """
    fetched, *further = of_nodes
    senders = next((each.senders for each in of_nodes if each.senders), ())
    return msgspec.structs.replace(fetched, senders=senders, copies=tuple(each.files for each in further))
