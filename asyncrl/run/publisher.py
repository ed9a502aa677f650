"""Publishes a policy version: the learner writes it, engines load it and prove that both are equal, and the buffer advances.

Who must have loaded it before it is published is decided by :mod:`asyncrl.weights.delivery_rules`.
"""

import time
from collections.abc import Callable, Collection
from typing import Protocol

from asyncrl.core.buffer_api import BufferApi
from asyncrl.core.errors import WeightMismatch
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication
from asyncrl.run.measures.events import VersionPublished
from asyncrl.run.measures.totals import Totals
from asyncrl.run.pool.generator_pool import GeneratorPool


class WritingRanks(Protocol):
    """The learner's ranks, as far as a publication needs them; see :class:`asyncrl.run.cluster.Cluster`."""

    async def write_weights(self, version: PolicyVersion, read: Collection[PolicyVersion]) -> Publication:
        """Write ``version`` from all ranks, within a deadline, and over none of the versions that are ``read``."""
        ...


class Publisher:
    """Has ``ranks`` write, ``generators`` load and ``buffer`` advance, in order; refuses to publish unchanged weights as new."""

    def __init__(
        self,
        ranks: WritingRanks,
        generators: GeneratorPool,
        buffer: BufferApi,
        totals: Totals,
        published_version: PolicyVersion,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[VersionPublished], object] = lambda event: None,
    ) -> None:
        self._ranks, self._generators, self._buffer = ranks, generators, buffer
        self._totals, self._clock, self._tell = totals, clock, tell
        self.published_version = published_version
        self._last_fingerprint: int | None = None

    async def write(self, version: PolicyVersion, *, must_differ: bool) -> tuple[Publication, float]:
        """Have the learner write ``version``; returns the publication and the seconds it took.

        Args:
            version: one more than the version written last.
            must_differ: the optimizer moved the weights, so an unchanged fingerprint would mean that an old version was written.

        Raises:
            WeightMismatch: the fingerprint must differ from the last version's and does not.
        """
        started = self._clock()
        publication = await self._ranks.write_weights(version, await self._generators.may_write())
        if must_differ and publication.fingerprint == self._last_fingerprint:
            raise WeightMismatch(
                f"version {version} has the fingerprint of version {version - 1} ({publication.fingerprint:#018x}) although the "
                "optimizer moved the weights; the learner published stale parameters"
            )
        self._last_fingerprint = publication.fingerprint
        return publication, self._clock() - started

    async def deliver(self, publication: Publication) -> float:
        """Have the engines load ``publication`` and prove that they did; then make it the published version.

        Returns:
            the seconds that this took.
        """
        started = self._clock()
        await self._generators.deliver(publication)
        if publication.version > self.published_version:
            await self._buffer.advance(publication.version)
            self.published_version = publication.version
            self._totals.published()
            self._tell(VersionPublished(version=publication.version, seconds=self._clock() - started))
        return self._clock() - started
