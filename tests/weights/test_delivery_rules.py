"""The protocol of publications, with failures, slowness, deaths and newcomers at every step."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncrl.core.errors import WeightMismatch
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.publication import Publication, WeightFile
from asyncrl.weights.delivery_rules import VERSIONS_IN_FILES, Deliveries, Step

PATIENCE_S = 10.0
HOME, FAR = "home", "far"


def publication(version: int, *nodes: str) -> Publication:
    files = tuple(WeightFile(f"rank-{rank}", node, 8) for rank, node in enumerate(nodes or (HOME,)))
    return Publication(version=PolicyVersion(version), files=files, shards=(), fingerprints=(), fingerprint=1000 + version)


class Machine:
    """The protocol with a clock that the test moves."""

    def __init__(self, *engines: str, patience_s: float = PATIENCE_S) -> None:
        self.now = 0.0
        self.deliveries = Deliveries(patience_s, lambda: self.now)
        for engine in engines:
            self.deliveries.join(WorkerId(engine), HOME, waited_for=True)

    def publish(self, version: int) -> None:
        self.deliveries.announce(publication(version))

    def load(self, *engines: str, version: int) -> None:
        for engine in engines:
            begun = self.deliveries.begin(WorkerId(engine))
            assert begun is not None
            assert begun.version == version
            self.deliveries.fetched(WorkerId(engine), begun)
            self.deliveries.acknowledged(WorkerId(engine), begun.fingerprint)


def test_a_version_is_published_when_all_have_acknowledged_it() -> None:
    machine = Machine("a", "b")
    machine.publish(1)
    machine.load("a", version=1)
    assert not machine.deliveries.acknowledged_by_all
    machine.load("b", version=1)
    assert machine.deliveries.acknowledged_by_all
    assert machine.deliveries.begin(WorkerId("a")) is None


def test_a_slow_engine_holds_the_others_up_once_and_skips_what_came_meanwhile() -> None:
    machine = Machine("a", "slow")
    slow = WorkerId("slow")
    machine.publish(1)
    assert machine.deliveries.begin(slow) == publication(1)
    machine.now = 3.0
    machine.load("a", version=1)
    machine.now = 12.9
    assert not machine.deliveries.acknowledged_by_all
    machine.now = 13.0
    assert machine.deliveries.acknowledged_by_all
    for version in (2, 3):
        machine.publish(version)
        machine.load("a", version=version)
        assert machine.deliveries.acknowledged_by_all, "it was late, so nobody waits for it"
        if version == 2:
            machine.deliveries.fetched(slow, publication(1))
            machine.deliveries.acknowledged(slow, 1001)
        assert machine.deliveries.behind == [(slow, Step.NONE)]
    machine.now = 13.5
    machine.load("slow", version=3)
    machine.publish(4)
    machine.load("a", version=4)
    assert not machine.deliveries.acknowledged_by_all, "it was in time with version 3, so it is waited for again"


def test_an_engine_out_of_reach_is_not_waited_for_until_it_was_in_time_again() -> None:
    machine = Machine("a", "cut-off")
    cut_off = WorkerId("cut-off")
    machine.publish(1)
    machine.deliveries.begin(cut_off)
    machine.load("a", version=1)
    assert not machine.deliveries.acknowledged_by_all
    machine.deliveries.overlook(cut_off)
    assert machine.deliveries.acknowledged_by_all
    machine.publish(2)
    machine.load("a", version=2)
    assert machine.deliveries.acknowledged_by_all
    machine.deliveries.fetched(cut_off, publication(1))
    machine.deliveries.acknowledged(cut_off, 1001)
    machine.load("cut-off", version=2)
    machine.publish(3)
    machine.load("a", version=3)
    assert not machine.deliveries.acknowledged_by_all, "it answers again"
    machine.deliveries.overlook(WorkerId("left long ago"))


def test_nobody_is_published_for_before_somebody_has_the_version() -> None:
    machine = Machine("a", "b")
    machine.publish(1)
    machine.now = 1e6
    assert not machine.deliveries.acknowledged_by_all
    for engine in "ab":
        machine.deliveries.leave(WorkerId(engine))
    assert machine.deliveries.acknowledged_by_all, "there is nobody left to have it"


def test_a_publication_waits_while_all_hold_their_version() -> None:
    machine = Machine("a")
    machine.deliveries.hold(WorkerId("a"))
    machine.publish(1)
    machine.now = 1e6
    assert machine.deliveries.begin(WorkerId("a")) is None
    assert not machine.deliveries.acknowledged_by_all
    machine.deliveries.release(WorkerId("a"))
    machine.load("a", version=1)
    assert machine.deliveries.acknowledged_by_all


def test_another_fingerprint_changes_no_version_and_versions_only_grow() -> None:
    machine = Machine("a")
    machine.publish(3)
    machine.deliveries.begin(WorkerId("a"))
    machine.deliveries.fetched(WorkerId("a"), publication(3))
    with pytest.raises(
        WeightMismatch, match="a loaded weights with fingerprint 0x00000000000003ea, version 3 was published with"
    ):
        machine.deliveries.acknowledged(WorkerId("a"), 1002)
    assert machine.deliveries.version(WorkerId("a")) is None
    with pytest.raises(WeightMismatch, match="version 3 cannot be published after version 3"):
        machine.publish(3)


def test_the_files_of_ranks_on_two_nodes_are_read_while_an_engine_of_one_of_them_loads() -> None:
    machine = Machine("a")
    machine.deliveries.announce(publication(1, HOME, FAR))
    machine.deliveries.begin(WorkerId("a"))
    machine.deliveries.fetched(WorkerId("a"), publication(1, HOME, HOME))
    machine.deliveries.announce(publication(2, HOME, FAR))
    assert machine.deliveries.read == {1, 2}


def test_what_is_being_fetched_stays_and_a_third_old_version_is_not_written() -> None:
    machine = Machine("a", "slow", "slower")
    for version, late in ((1, "slow"), (2, "slower")):
        machine.publish(version)
        machine.deliveries.begin(WorkerId(late))
        machine.load(*{"a", "slower"} - {late}, version=version)
        machine.now += PATIENCE_S
        assert machine.deliveries.acknowledged_by_all
        assert machine.deliveries.may_write
    machine.publish(3)
    assert machine.deliveries.read == {1, 2, 3}
    assert not machine.deliveries.may_write
    machine.deliveries.fetched(WorkerId("slow"), publication(1, FAR))
    assert machine.deliveries.read == {2, 3}, "it has a copy of its own now"
    machine.deliveries.leave(WorkerId("slower"))
    assert machine.deliveries.read == {3}


def test_a_copy_that_an_engine_loads_from_is_not_overwritten() -> None:
    machine = Machine()
    for engine in ("quick", "slow"):
        machine.deliveries.join(WorkerId(engine), FAR, waited_for=False)
    machine.publish(1)
    machine.deliveries.begin(WorkerId("slow"))
    machine.deliveries.fetched(WorkerId("slow"), publication(1, FAR))
    for version in (1, 2):
        if version == 2:
            machine.publish(2)
        machine.deliveries.begin(WorkerId("quick"))
        machine.deliveries.fetched(WorkerId("quick"), publication(version, FAR))
        machine.deliveries.acknowledged(WorkerId("quick"), 1000 + version)
    machine.publish(3)
    assert machine.deliveries.begin(WorkerId("quick")) is None, "version 3 would arrive over version 1"
    machine.deliveries.acknowledged(WorkerId("slow"), 1001)
    assert machine.deliveries.begin(WorkerId("quick")) == publication(3)


def test_nothing_arrives_over_a_version_that_still_arrives() -> None:
    machine = Machine("near")
    early, later, newcomer = (WorkerId(name) for name in ("early", "later", "newcomer"))
    for engine, version in ((early, 1), (later, 2)):
        machine.deliveries.join(engine, FAR, waited_for=False)
        machine.publish(version)
        machine.load("near", version=version)
        assert machine.deliveries.begin(engine) == publication(version)
    machine.deliveries.join(newcomer, FAR, waited_for=False)
    machine.publish(3)
    assert machine.deliveries.begin(newcomer) is None, "version 3 would arrive where version 1 arrives"
    machine.deliveries.fetched(early, publication(1, FAR))
    assert machine.deliveries.begin(newcomer) is None, "version 3 would arrive over version 1"
    machine.deliveries.acknowledged(early, 1001)
    assert machine.deliveries.begin(newcomer) == publication(3)


def test_copies_beside_files_that_a_rank_wrote_are_not_overwritten_either() -> None:
    """Ranks on two nodes write; the engines are on one of these, so that half of what they load from are copies."""
    machine = Machine("slow", "quick")
    slow, quick = WorkerId("slow"), WorkerId("quick")
    for version in (1, 2):
        machine.deliveries.announce(publication(version, HOME, FAR))
        for engine in (slow, quick):
            if machine.deliveries.begin(engine) is not None:
                machine.deliveries.fetched(engine, publication(version, HOME, HOME))
        machine.deliveries.acknowledged(quick, 1000 + version)
    machine.deliveries.announce(publication(3, HOME, FAR))
    assert machine.deliveries.begin(quick) is None, "the far rank's part of version 3 would arrive over that of version 1"
    machine.deliveries.acknowledged(slow, 1001)
    assert machine.deliveries.begin(quick) == publication(3, HOME, FAR)


class Protocol(RuleBasedStateMachine):
    """Steps of the ranks, engines, nodes and time in any order. The test keeps its own account of what everybody holds."""

    @initialize(nodes=st.lists(st.sampled_from([HOME, FAR]), min_size=1, max_size=4))
    def start(self, nodes: list[str]) -> None:
        self.now = 0.0
        self.protocol = Deliveries(PATIENCE_S, lambda: self.now)
        self.numbers = iter(range(1000))
        self.nodes: dict[WorkerId, str] = {}
        self.loaded: dict[WorkerId, list[int]] = {}
        self.reading: dict[WorkerId, tuple[Step, int]] = {}
        self.held: set[WorkerId] = set()
        self.files: list[int | None] = [None] * VERSIONS_IN_FILES
        self.fetched_on: dict[str, list[int]] = {FAR: []}
        self.first_at: float | None = None
        self.waited_for: dict[WorkerId, bool] = {}
        self.deserted = False
        self.newest = 0
        self.was_acknowledged = True
        for node in nodes:
            self.join(node, waited_for=True)

    def engines(self, step: Step | None = None) -> Iterator[WorkerId]:
        yield from [each for each in self.nodes if step is None or self.reading.get(each, (Step.NONE, 0))[0] is step]

    @rule(node=st.sampled_from([HOME, FAR]), waited_for=st.just(False))
    def join(self, node: str, waited_for: bool) -> None:
        engine = WorkerId(f"generator-{next(self.numbers)}")
        self.nodes[engine], self.loaded[engine], self.waited_for[engine] = node, [], waited_for
        self.protocol.join(engine, node, waited_for=waited_for)

    @precondition(lambda self: self.protocol.acknowledged_by_all and self.protocol.may_write)
    @rule()
    def publish(self) -> None:
        """The ranks write over a version that nobody reads, in one of the places that they have."""
        read = self.protocol.read
        place = next(i for i, version in enumerate(self.files) if version not in read)
        self.newest += 1
        self.files[place] = self.newest
        self.first_at, self.deserted, self.was_acknowledged = None, not self.nodes, False
        self.protocol.announce(publication(self.newest))

    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        for engine in data.draw(st.permutations(list(self.engines()))):
            if (begun := self.protocol.begin(engine)) is not None:
                assert engine not in self.held
                assert engine not in self.reading
                assert begun.version == self.newest, "the newest, whatever came between"
                self.reading[engine] = Step.FETCH, begun.version
                if self.nodes[engine] == FAR:
                    self.fetched_on[FAR].append(begun.version)
                return

    @precondition(lambda self: any(self.engines(Step.FETCH)))
    @rule(data=st.data())
    def fetched(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from(list(self.engines(Step.FETCH))))
        version = self.reading[engine][1]
        self.protocol.fetched(engine, publication(version, self.nodes[engine]))
        self.reading[engine] = Step.LOAD, version

    @precondition(lambda self: any(self.engines(Step.LOAD)))
    @rule(data=st.data())
    def acknowledged(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from(list(self.engines(Step.LOAD))))
        _, version = self.reading.pop(engine)
        self.loaded[engine].append(version)
        if version == self.newest:
            self.first_at = self.now if self.first_at is None else self.first_at
            if self.now < self.first_at + PATIENCE_S:
                self.waited_for[engine] = True
        self.protocol.acknowledged(engine, 1000 + version)

    @precondition(lambda self: any(self.engines(Step.LOAD)))
    @rule(data=st.data())
    def loaded_something_else(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from(list(self.engines(Step.LOAD))))
        with pytest.raises(WeightMismatch):
            self.protocol.acknowledged(engine, 999)
        self.gone(engine)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def dies_or_misses_its_deadline(self, data: st.DataObject) -> None:
        self.gone(data.draw(st.sampled_from(list(self.engines()))))

    def gone(self, engine: WorkerId) -> None:
        self.protocol.leave(engine)
        del self.nodes[engine], self.loaded[engine]
        self.reading.pop(engine, None)
        self.held.discard(engine)
        self.deserted = self.deserted or not self.nodes
        with pytest.raises(WeightMismatch, match="has left"):
            self.protocol.fetched(engine, publication(self.newest))
        with pytest.raises(WeightMismatch, match="has left"):
            self.protocol.acknowledged(engine, 1000 + self.newest)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def hold_or_release(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from(list(self.engines())))
        if engine in self.held:
            self.held.remove(engine)
            self.protocol.release(engine)
        else:
            self.held.add(engine)
            self.protocol.hold(engine)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def out_of_reach(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from(list(self.engines())))
        self.waited_for[engine] = False
        self.protocol.overlook(engine)

    @rule(seconds=st.sampled_from([0.5, PATIENCE_S / 2, PATIENCE_S, 1000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def everybodys_version_is_known_and_only_grows(self) -> None:
        for engine, versions in self.loaded.items():
            assert self.protocol.version(engine) == (versions[-1] if versions else None)
            assert versions == sorted(set(versions))

    @invariant()
    def what_is_read_is_not_overwritten(self) -> None:
        for engine, (step, version) in self.reading.items():
            if step is Step.FETCH or self.nodes[engine] == HOME:
                assert version in self.files
            if self.nodes[engine] == FAR:
                last = self.fetched_on[FAR][-1]
                assert version >= last - 1, "the copies of a node are overwritten two versions later"
        assert not self.newest or self.newest in self.files, "a newcomer fetches it at any time"

    @invariant()
    def nobody_waits_longer_than_the_patience(self) -> None:
        if self.first_at is not None and self.now >= self.first_at + PATIENCE_S:
            assert self.protocol.acknowledged_by_all

    @invariant()
    def a_version_is_published_exactly_when_those_that_are_waited_for_have_it(self) -> None:
        over = self.first_at is not None and self.now >= self.first_at + PATIENCE_S
        late = [
            each
            for each in self.nodes
            if self.waited_for[each] and each not in self.held and self.loaded[each][-1:] != [self.newest]
        ]
        due = self.deserted or over or (self.first_at is not None and not late)
        assert self.protocol.acknowledged_by_all == (self.was_acknowledged or due)
        if due and not self.was_acknowledged:
            self.was_acknowledged = True
            for each in late:
                self.waited_for[each] = False

    def teardown(self) -> None:
        """Whatever has happened: if every step that is under way ends, all catch up, and the newest version is published."""
        if not hasattr(self, "protocol"):
            return
        for engine in list(self.held):
            self.protocol.release(engine)
        for _ in range(4 * (1 + len(self.nodes))):
            for engine in self.nodes:
                if (begun := self.protocol.begin(engine)) is not None:
                    self.reading[engine] = Step.FETCH, begun.version
                step, version = self.reading.get(engine, (Step.NONE, 0))
                if step is Step.FETCH:
                    self.protocol.fetched(engine, publication(version, self.nodes[engine]))
                    self.reading[engine] = Step.LOAD, version
                elif step is Step.LOAD:
                    self.protocol.acknowledged(engine, 1000 + version)
                    del self.reading[engine]
        assert all(self.protocol.is_current(engine) for engine in self.nodes)
        assert all(self.protocol.version(engine) == (self.newest or None) for engine in self.nodes)
        self.now += PATIENCE_S
        assert self.protocol.acknowledged_by_all


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(max_examples=150, stateful_step_count=40, suppress_health_check=list(HealthCheck))
