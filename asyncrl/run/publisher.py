"""Publishing a policy version: written by the learner, loaded by every engine, proven equal, and only then the clock moves."""

import time

import msgspec

from asyncrl.core.errors import WeightMismatch
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication
from asyncrl.run.cluster import Cluster
from asyncrl.run.totals import Totals


class PublishTimes(msgspec.Struct, frozen=True):
    """Seconds the learner spent writing, and until all engines had acknowledged."""

    write_seconds: float
    install_seconds: float


class Publisher:
    """Owns the order of a publication, and sees to it that what is published is new.

    Attributes:
        clock: the newest version that every engine has acknowledged.
    """

    def __init__(self, cluster: Cluster, totals: Totals, published_version: PolicyVersion) -> None:
        self._cluster, self._totals, self.published_version = cluster, totals, published_version
        self._last_fingerprint: int | None = None

    async def write(self, version: PolicyVersion, *, must_differ: bool) -> tuple[Publication, float]:
        """Have the learner write ``version``; the seconds it took.

        Args:
            version: one more than the last.
            must_differ: the optimizer moved the weights, so an unchanged fingerprint means that an old version was written.
        """
        started = time.monotonic()
        publication = await self._cluster.write_weights(version)
        if must_differ and publication.fingerprint == self._last_fingerprint:
            raise WeightMismatch(
                f"version {version} has the fingerprint of version {version - 1} ({publication.fingerprint:#018x}) although the "
                "optimizer moved the weights; the learner published stale parameters"
            )
        self._last_fingerprint = publication.fingerprint
        return publication, time.monotonic() - started

    async def deliver(self, publication: Publication, write_seconds: float) -> PublishTimes:
        """Have every engine load it and prove that it did, and move the clock."""
        started = time.monotonic()
        await self._cluster.install_weights(publication)
        if publication.version > self.published_version:
            await self._cluster.advance(publication.version)
            self.published_version = publication.version
            self._totals.published()
        return PublishTimes(write_seconds, time.monotonic() - started)
