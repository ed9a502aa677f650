"""The protocol by which publications reach the engines, as a state machine without I/O: who has which version, and what is next.

One publication goes through these steps: it is *announced* once the ranks have written it; each engine has its bytes *fetched*
to its own nodes while it goes on sampling; it *loads* them (prepare, pause, exchange, resume: one call); and it *acknowledges*
with a fingerprint. What always holds, in whatever order engines are fast, slow, die and join:

* the version of each engine is known, since only an acknowledgement with the publication's own fingerprint changes it; an engine
  that fails a step leaves, so that nobody samples with weights that nobody knows;
* the versions that one engine fetches and loads only grow. It skips those that came while it was busy;
* each step has the same deadline. Whoever carries it out has the engine leave when it has passed;
* a version may be published when every engine that is waited for has acknowledged it, and at least one has if there are engines.
  Nobody is waited for any longer than the patience after the first engine had the version. Whoever has it not by then is behind:
  the buffer gives it no ticket, its tokens keep the version that sampled them, and it goes on to the newest publication. It is
  not waited for again until it was in time with one. Neither is an engine that is overlooked, because it is out of reach, nor one
  that holds its version;
* a publication's files stay as they are while an engine's bytes are fetched from them, or loaded from them themselves; there are
  never more than :data:`VERSIONS_IN_FILES` versions of them, the one being written included;
* a version is fetched to a node only when no engine there fetches one that is two or more versions older, or loads from a copy of
  such a one.
"""

from collections.abc import Callable
from enum import Enum, auto
from itertools import chain

from asyncrl.core.errors import WeightMismatch
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.publication import Publication

VERSIONS_IN_FILES = 3
"""Versions that files of the learner's ranks may hold at once: the newest, the next, and one that a slow engine still reads."""


class Step(Enum):
    """What an engine is doing with a publication."""

    NONE = auto()
    FETCH = auto()
    LOAD = auto()


class _Engine:
    """What is known of one engine.

    Attributes:
        version: the version that it has acknowledged last; None until the first.
        waited_for: whether the others wait for it.
        holds: whether it keeps its version for now.
        doing: the publication of the present step.
        reads_originals, reads_copies: whether some of the files that it loads from are those that the ranks wrote, and whether
            some are copies on its node. Both, if ranks on several nodes write and it is on one of these.
    """

    def __init__(self, nodes: frozenset[str], *, waited_for: bool) -> None:
        self.nodes, self.waited_for = nodes, waited_for
        self.version: PolicyVersion | None = None
        self.holds = False
        self.step = Step.NONE
        self.reads_originals = self.reads_copies = False
        self.doing: Publication | None = None


class Deliveries:
    """The publications of one run on their way to its engines.

    Args:
        patience_s: how long the others wait for an engine once one of them has a version, in seconds.
        clock: returns the time in seconds; must never go back.
    """

    def __init__(self, patience_s: float, clock: Callable[[], float]) -> None:
        self._patience_s, self._clock = patience_s, clock
        self._engines: dict[WorkerId, _Engine] = {}
        self._newest: Publication | None = None
        self._first_at: float | None = None
        self._acknowledged_by_all = True

    @property
    def newest(self) -> PolicyVersion | None:
        """The newest version that was written; None before the first."""
        return None if self._newest is None else self._newest.version

    def join(self, engine: WorkerId, *nodes: str, waited_for: bool) -> None:
        """Take in an engine on one or several nodes; it has acknowledged no version yet.

        Args:
            waited_for: whether the others wait for it from the first publication on. A newcomer is waited for once it has shown
                that it is fast enough.
        """
        self._engines[engine] = _Engine(frozenset(nodes), waited_for=waited_for)

    def leave(self, engine: WorkerId) -> None:
        """Forget an engine that died, failed a step or missed its deadline. Nothing happens if it is not there."""
        self._engines.pop(engine, None)
        self._end_waiting_if_due()

    def hold(self, engine: WorkerId) -> None:
        """Have an engine keep its version, once its present step is done."""
        self._engines[engine].holds = True
        self._end_waiting_if_due()

    def release(self, engine: WorkerId) -> None:
        """Let an engine go on to newer versions. Nothing happens if it has left."""
        if (there := self._engines.get(engine)) is not None:
            there.holds = False

    def overlook(self, engine: WorkerId) -> None:
        """Wait no longer for an engine that is out of reach, until it was in time with a version; nothing happens if it left."""
        if (there := self._engines.get(engine)) is not None:
            there.waited_for = False
            self._end_waiting_if_due()

    def announce(self, publication: Publication) -> None:
        """Make ``publication`` the newest.

        Raises:
            WeightMismatch: it is not newer than the last.
        """
        if self._newest is not None and publication.version <= self._newest.version:
            raise WeightMismatch(f"version {publication.version} cannot be published after version {self._newest.version}")
        self._newest, self._first_at, self._acknowledged_by_all = publication, None, False
        self._end_waiting_if_due()

    def begin(self, engine: WorkerId) -> Publication | None:
        """Have ``engine`` begin with the publication that is to be fetched for it now, and return it; None if there is none."""
        there, newest = self._engines[engine], self._newest
        if newest is None or there.step is not Step.NONE or there.holds or there.version == newest.version:
            return None
        if self._needs_older_copy_on(there.nodes, newest.version - 1):
            return None
        there.step, there.doing = Step.FETCH, newest
        return newest

    def _needs_older_copy_on(self, nodes: frozenset[str], version: int) -> bool:
        """Whether an engine on one of ``nodes`` loads from a copy of an older version, or will once it has arrived."""
        return any(
            each.doing is not None and each.doing.version < version
            for each in self._engines.values()
            if not nodes.isdisjoint(each.nodes) and (each.step is Step.FETCH or each.reads_copies)
        )

    def fetched(self, engine: WorkerId, there: Publication) -> None:
        """Note that ``engine`` can read the publication that it began with, and loads it now.

        Args:
            there: the publication with the files that the engine reads; some may be those that the ranks wrote.

        Raises:
            WeightMismatch: it had not begun to fetch, or has left.
        """
        original = self._doing(engine, Step.FETCH)
        loading = self._engines[engine]
        read, written = {*there.files, *chain.from_iterable(there.copies)}, set(original.files)
        loading.step, loading.reads_originals, loading.reads_copies = Step.LOAD, bool(read & written), bool(read - written)

    def acknowledged(self, engine: WorkerId, fingerprint: int) -> None:
        """Note that ``engine`` has loaded the publication that it began with, and which fingerprint it computed.

        Raises:
            WeightMismatch: it has loaded something else, was not loading, or has left.
        """
        publication = self._doing(engine, Step.LOAD)
        if fingerprint != publication.fingerprint:
            raise WeightMismatch(
                f"{engine} loaded weights with fingerprint {fingerprint:#018x}, version {publication.version} was "
                f"published with {publication.fingerprint:#018x}; the transfer corrupted or lost tensors"
            )
        there = self._engines[engine]
        there.version, there.step, there.doing = publication.version, Step.NONE, None
        if publication is self._newest:
            self._first_at = self._clock() if self._first_at is None else self._first_at
            there.waited_for = there.waited_for or self.wait_s != 0.0
        self._end_waiting_if_due()

    def _doing(self, engine: WorkerId, step: Step) -> Publication:
        there = self._engines.get(engine)
        if there is None or there.step is not step or there.doing is None:
            doing = "has left" if there is None else f"is at step {there.step.name}"
            raise WeightMismatch(f"{engine} reported the end of step {step.name}, and {doing}; this is a bug in the pool")
        return there.doing

    def _end_waiting_if_due(self) -> None:
        """End the waiting for the newest version if it is time. That stays so, even if all engines that have it leave."""
        if self._acknowledged_by_all:
            return
        late = [each for each in self._engines.values() if each.waited_for and not each.holds and each.version != self.newest]
        if self._engines and (self._first_at is None or (late and self.wait_s != 0.0)):
            return
        for each in late:
            each.waited_for = False
        self._acknowledged_by_all = True

    @property
    def acknowledged_by_all(self) -> bool:
        """Whether all that are waited for have acknowledged the newest version, which may then be published.

        Changes with every report, and with time after :attr:`wait_s`.
        """
        self._end_waiting_if_due()
        return self._acknowledged_by_all

    @property
    def wait_s(self) -> float | None:
        """Seconds until the patience with those that have not the newest version ends; None if no engine has it."""
        return None if self._first_at is None else max(0.0, self._first_at + self._patience_s - self._clock())

    def version(self, engine: WorkerId) -> PolicyVersion | None:
        """The version that an engine has acknowledged last; None if none, or if it has left."""
        there = self._engines.get(engine)
        return None if there is None else there.version

    def is_current(self, engine: WorkerId) -> bool:
        """Whether an engine has nothing to catch up with."""
        there = self._engines.get(engine)
        return there is not None and there.step is Step.NONE and (self._newest is None or there.version == self._newest.version)

    def is_busy(self, engine: WorkerId) -> bool:
        """Whether an engine is fetching or loading."""
        there = self._engines.get(engine)
        return there is not None and there.step is not Step.NONE

    @property
    def behind(self) -> list[tuple[WorkerId, Step]]:
        """The engines that have acknowledged an older version than the newest, and what they are doing."""
        engines = self._engines.items()
        return [(name, each.step) for name, each in engines if not each.holds and each.version not in (None, self.newest)]

    @property
    def read(self) -> frozenset[PolicyVersion]:
        """The versions whose files must stay as they are: the newest, and those that somebody reads."""
        read = {
            each.doing.version
            for each in self._engines.values()
            if each.doing is not None and (each.step is Step.FETCH or each.reads_originals)
        }
        return frozenset(read if self._newest is None else {*read, self._newest.version})

    @property
    def may_write(self) -> bool:
        """Whether there is a place for the files of one more version."""
        return len(self.read) < VERSIONS_IN_FILES
