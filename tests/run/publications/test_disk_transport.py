"""The driver's side of weights through a folder, over real mirrors; only Ray's way of calling them is replaced."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import torch

from asyncrl.core.errors import ComponentFailed, ProcessDied, WeightsOutOfReach
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, Shard
from asyncrl.run.publications.disk_transport import DiskTransport
from asyncrl.weights.disk.disk_mirror import DiskMirror
from asyncrl.weights.disk.stored_versions import StoredVersions
from asyncrl.weights.publication_merge import merge
from asyncrl.weights.shm.shared_tensors import SharedMemory

SECONDS, CLOSING_S = 60.0, 1.0


class FakeActor:
    """Calls a mirror's methods as Ray would; dies as often as told."""

    def __init__(self, mirror: DiskMirror, node: str, site: "Site") -> None:
        self._mirror, self._node, self._site = mirror, node, site

    @property
    def call(self) -> SimpleNamespace:
        return SimpleNamespace(remote=self._call)

    async def _call(self, method: str, *arguments: object) -> object:
        self._site.calls.append((self._node, method))
        await asyncio.sleep(0)
        if self._site.dies[self._node, method] > 0:
            self._site.dies[self._node, method] -= 1
            raise ProcessDied(f"{self._node} died")
        return getattr(self._mirror, method)(*arguments)


class Site:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._memory, self._stack = folder / "weights", folder / "memory", stack
        self._memory.mkdir()
        self._rank = stack.enter_context(closing(SharedMemory("run", 0, str(self._memory), node="learner")))
        self.calls: list[tuple[str, str]] = []
        self.dies = Counter[tuple[str, str]]()
        self.publications = DiskTransport(self.make, folder, SECONDS)

    def make(self, node: str, log: Path) -> FakeActor:
        self.calls.append((node, "made"))
        made = DiskMirror("run", node, self.folder, True, str(self._memory))
        return FakeActor(self._stack.enter_context(closing(made)), node, self)

    def publish(self, version: int) -> Publication:
        shard = Shard("w", (4,), (0,), torch.full((4,), float(version)))
        return merge([self._rank.write(PolicyVersion(version), [shard])])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


async def test_a_version_is_stored_once_and_fetched_once_for_each_node(site: Site) -> None:
    for version in range(1, 7):
        publication = site.publish(version)
        nodes = ["learner", "a", "a", "b"]
        local = await asyncio.gather(*(site.publications.fetch_to_node(publication, node) for node in nodes))
        assert local[0] is publication, "beside the rank there is nothing to fetch"
        for each, node in list(zip(local, nodes, strict=True))[1:]:
            assert [file.node for file in each.files] == [node]
            assert dict(SharedMemory.read(each))["w"].tolist() == [version] * 4
    assert site.calls.count(("learner", "store")) == site.calls.count(("learner", "complete")) == 6
    assert site.calls.count(("a", "fetch_version")) == site.calls.count(("b", "fetch_version")) == 6
    assert site.calls.count(("learner", "made")) == 1
    assert StoredVersions(site.folder).versions()[-1] == 6


async def test_a_node_that_was_left_fetches_the_version_again_for_an_engine_that_comes_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "kill", lambda mirror: None)
    publication = site.publish(1)
    await site.publications.fetch_to_node(publication, "a")
    await site.publications.leave("a")
    assert dict(SharedMemory.read(await site.publications.fetch_to_node(publication, "a")))["w"].tolist() == [1] * 4


async def test_every_version_is_stored_even_if_only_the_learners_node_has_engines(site: Site) -> None:
    for version in (1, 2):
        await site.publications.fetch_to_node(site.publish(version), "learner")
    assert StoredVersions(site.folder).versions() == [1, 2]


async def test_the_successor_of_a_mirror_that_died_does_its_work(site: Site) -> None:
    """Of every mirror, at every step; nobody who waits hears of it, and the versions after it can be read."""
    deaths = [("learner", "store"), ("learner", "complete"), ("a", "fetch_version")]
    for version, place in enumerate(deaths, 1):
        publication = site.publish(version)
        site.dies[place] = 1
        for local in await asyncio.gather(*(site.publications.fetch_to_node(publication, node) for node in ("a", "b"))):
            assert dict(SharedMemory.read(local))["w"].tolist() == [version] * 4
    assert [site.calls.count((node, "made")) for node in ("learner", "a", "b")] == [3, 2, 1]
    assert site.calls.count(("learner", "store")) == 3 + 2


async def test_after_a_mirror_and_its_successor_died_the_version_may_be_asked_for_again(site: Site) -> None:
    publication = site.publish(1)
    for place in (("learner", "store"), ("a", "fetch_version")):
        site.dies[place] = 2
        with pytest.raises(ProcessDied):
            await site.publications.fetch_to_node(publication, "a")
    local = await site.publications.fetch_to_node(publication, "a")
    assert dict(SharedMemory.read(local))["w"].tolist() == [1.0] * 4
    assert site.calls.count(("a", "made")) == 3


async def test_a_folder_that_is_not_shared_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.run.publications.disk_transport.SEEN_S", 0.0)
    publication = site.publish(1)
    await site.publications.fetch_to_node(publication, "learner")
    (site.folder / "version-000001").rename(site.folder / "elsewhere")
    with pytest.raises(ComponentFailed, match="must be on a file system that all nodes share"):
        await site.publications.fetch_to_node(publication, "a")
    await site.publications.close(CLOSING_S)


async def test_a_node_that_does_not_see_the_folder_is_known_before_an_engine_starts_there(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.run.publications.disk_transport.SEEN_S", 0.0)
    publication = site.publish(1)
    await site.publications.check_reach(publication, "a")
    assert site.calls == [], "nothing is stored yet by which it could be seen"
    for version in range(2, 7):
        publication = site.publish(version)
        await site.publications.fetch_to_node(publication, "learner")
        await site.publications.check_reach(publication, "a")
    shared, site.folder = site.folder, site.folder.with_name("not-shared")
    await site.publications.check_reach(publication, "learner")
    with pytest.raises(
        WeightsOutOfReach, match=r"node b does not see .*/not-shared, through which new weights go .*mount the folder"
    ):
        await site.publications.check_reach(publication, "b")
    site.folder = shared
    await site.publications.check_reach(publication, "c")
