"""Publications that travel through a versioned folder; each mirror stands for a node."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, Shard
from asyncrl.weights.disk import disk_mirror
from asyncrl.weights.disk.disk_mirror import DiskMirror
from asyncrl.weights.disk.stored_file import BLOCK_BYTES, apply_blocks, changed_blocks, write_blocks
from asyncrl.weights.disk.stored_versions import StoredVersions
from asyncrl.weights.publication_merge import merge
from asyncrl.weights.shm.shared_tensors import SharedMemory

SEEN_S = 0.0
ROWS, COLUMNS = 512, 64


class Site:
    """Two ranks on a node of their own each, and mirrors of any nodes, over one shared folder."""

    def __init__(self, folder: Path, stack: ExitStack, *, delta: bool) -> None:
        self.folder, self._stack, self._delta = folder / "weights", stack, delta
        self._memory = folder / "memory"
        self._memory.mkdir()
        self._ranks = [
            stack.enter_context(closing(SharedMemory("run", rank, str(self._memory), node=f"learner{rank}"))) for rank in range(2)
        ]
        self._mirrors: dict[str, DiskMirror] = {}
        self.weights = torch.randn(ROWS, COLUMNS)
        self.norm = torch.ones(3).half()

    def mirror(self, node: str) -> DiskMirror:
        if node not in self._mirrors:
            made = DiskMirror("run", node, self.folder, self._delta, str(self._memory))
            self._mirrors[node] = self._stack.enter_context(closing(made))
        return self._mirrors[node]

    def restart(self, node: str) -> None:
        del self._mirrors[node]

    def store(self, version: int, read: tuple[int, ...] = ()) -> Publication:
        publication = self._written(version)
        stored = {}
        for node in ("learner0", "learner1"):
            stored |= self.mirror(node).store(publication)
        files = [stored[number] for number in range(2)]
        kept = [PolicyVersion(each) for each in read]
        self.mirror("learner0").complete(publication.version, publication.fingerprint, files, kept)
        return publication

    def part_of(self, node: str, version: int) -> None:
        """Have one node alone store its part of a version."""
        publication = self._written(version)
        self.mirror(node).store(publication)

    def _written(self, version: int) -> Publication:
        half, shape = ROWS // 2, (ROWS, COLUMNS)
        shards = [
            [Shard("norm", (3,), (0,), self.norm), Shard("w", shape, (0, 0), self.weights[:half])],
            [Shard("w", shape, (half, 0), self.weights[half:])],
        ]
        return merge([rank.write(PolicyVersion(version), own) for rank, own in zip(self._ranks, shards, strict=True)])

    def fetch(self, node: str, publication: Publication) -> dict[str, torch.Tensor]:
        files = self.mirror(node).fetch_version(publication.version, SEEN_S)
        assert {file.node for file in files} == {node}
        there = msgspec.structs.replace(publication, files=files)
        return {name: tensor.clone() for name, tensor in SharedMemory.read(there)}

    def stored_bytes(self, version: int) -> int:
        return sum(file.stored for file in StoredVersions(self.folder).manifest(PolicyVersion(version)).files)

    def versions(self) -> list[int]:
        return list(StoredVersions(self.folder).versions())


@pytest.fixture(params=[False, True], ids=["whole", "delta"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack, delta=request.param)


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack, delta=True)


def test_what_is_fetched_is_what_the_ranks_wrote(site: Site) -> None:
    """Also on the learner's own node, by nodes that skip versions, and by one that joins late."""
    for version in range(1, 8):
        site.weights[version] += 1
        publication = site.store(version)
        nodes = ["always", "learner0"] + ["sometimes"] * (version in (1, 2, 5, 7)) + ["late"] * (version == 7)
        for node in nodes:
            loaded = site.fetch(node, publication)
            assert torch.equal(loaded["w"], site.weights), (node, version)
            assert torch.equal(loaded["norm"], site.norm)


def test_a_fetched_version_stays_while_the_next_is_fetched(site: Site) -> None:
    first, before = site.store(1), site.weights.clone()
    files = site.mirror("n").fetch_version(first.version, SEEN_S)
    site.weights[5] = 0
    site.fetch("n", site.store(2))
    there = msgspec.structs.replace(first, files=files)
    assert torch.equal(dict(SharedMemory.read(there))["w"], before)


def test_a_whole_file_is_safetensors(site: Site) -> None:
    site.store(1)
    folder = site.folder / "version-000001"
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        "rank-00000.safetensors",
        "rank-00001.safetensors",
    ]
    loaded = load_file(folder / "rank-00000.safetensors")
    assert torch.equal(loaded["norm"], site.norm)
    assert torch.equal(loaded[f"w[0:{ROWS // 2},0:{COLUMNS}]"], site.weights[: ROWS // 2])


def test_only_changed_blocks_are_stored(changing: Site) -> None:
    changing.store(1)
    changing.weights[3, 5] += 1
    changing.weights[ROWS - 1, 0] += 1
    changing.store(2)
    assert changing.stored_bytes(2) < 2.2 * BLOCK_BYTES < changing.stored_bytes(1) / 10
    changing.weights += 1
    changing.store(3)
    assert changing.stored_bytes(3) > ROWS * COLUMNS * 4, "everything has changed, so it is stored whole"


def test_from_time_to_time_a_file_is_whole(changing: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_mirror, "WHOLE_EVERY", 3)
    whole = []
    for version in range(1, 8):
        changing.weights[version] += 1
        changing.store(version)
        whole.append(StoredVersions(changing.folder).manifest(PolicyVersion(version)).files[0].base is None)
    assert whole == [True, False, False, True, False, False, True]


def test_old_versions_are_removed_unless_somebody_needs_them(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_mirror, "WHOLE_EVERY", 3)
    there = []
    for version in range(1, 8):
        site.weights[version] += 1
        site.store(version, read=(2,) if version < 5 else ())
        there.append(site.versions())
    if site._delta:  # 1, 4 and 7 are whole
        assert there[3:] == [[1, 2, 3, 4], [4, 5], [4, 5, 6], [4, 5, 6, 7]]
    else:
        assert there[3:] == [[2, 3, 4], [4, 5], [5, 6], [6, 7]]


def test_a_mirror_that_is_made_again_needs_nothing_of_the_old_one(changing: Site) -> None:
    changing.store(1)
    for node in ("learner0", "n"):
        changing.weights[7] += 1
        publication = changing.store(2 if node == "learner0" else 3)
        if node in changing._mirrors:
            changing.restart(node)
        assert torch.equal(changing.fetch("n", publication)["w"], changing.weights)
    changing.restart("learner0")
    changing.weights[9] += 1
    publication = changing.store(4)
    assert [file.base for file in StoredVersions(changing.folder).manifest(PolicyVersion(4)).files] == [None, 3]
    assert torch.equal(changing.fetch("n", publication)["w"], changing.weights)


def test_a_version_that_did_not_become_whole_is_no_base_of_changes(changing: Site) -> None:
    """The mirror of one node has stored its part when that of the other one dies: it stores it again, or goes on to the next."""
    changing.store(1)
    changing.weights[7] += 1
    changing.part_of("learner0", 2)
    changing.weights[9] += 1
    assert torch.equal(changing.fetch("late", changing.store(3))["w"], changing.weights)
    again = changing.store(3)  # whoever asked died before it heard that the version was complete
    assert torch.equal(changing.fetch("later", again)["w"], changing.weights)
    changing.weights[11] += 1
    after = changing.store(4)
    assert torch.equal(changing.fetch("latest", after)["w"], changing.weights)
    assert changing.stored_bytes(4) < changing.stored_bytes(3) // 2, "what is whole is a base again"


def test_a_resumed_run_takes_the_place_of_versions_that_are_newer(site: Site) -> None:
    for version in (1, 2, 3):
        site.store(version)
    site.restart("learner0")
    site.restart("learner1")
    site.weights[0] = 5
    assert torch.equal(site.fetch("n", site.store(2))["w"], site.weights)
    assert site.versions() == ([1, 2] if site._delta else [2])


def test_a_version_that_is_not_whole_is_not_there(site: Site) -> None:
    publication = site.store(1)
    (site.folder / "version-000001").rename(site.folder / ".version-000001.new")
    with pytest.raises(ComponentFailed, match=r"version-000001/manifest.json cannot be read.*weights.folder must be"):
        site.mirror("n").fetch_version(publication.version, SEEN_S)


def test_bytes_that_changed_on_disk_are_noticed_and_the_next_version_is_read_whole(changing: Site) -> None:
    first = changing.store(1)
    assert torch.equal(changing.fetch("n", first)["w"], changing.weights)
    changing.weights[3] += 1
    second = changing.store(2)
    for name in ("version-000001/rank-00000.safetensors", "version-000002/rank-00000.changes"):
        path = changing.folder / name
        original = path.read_bytes()
        damaged = bytearray(original)
        damaged[-9] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ComponentFailed, match=f"{path.name}: its bytes are not those that were written"):
            changing.mirror("n").fetch_version(second.version, SEEN_S)
        path.write_bytes(original)
    assert torch.equal(changing.fetch("n", second)["w"], changing.weights)


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 5 * BLOCK_BYTES),
    changes=st.lists(st.integers(0, 5 * BLOCK_BYTES), max_size=4),
)
def test_changed_blocks_make_one_version_of_the_other(
    tmp_path_factory: pytest.TempPathFactory, size: int, changes: list[int]
) -> None:
    before = np.frombuffer(os.urandom(size), np.uint8).copy()
    now = before.copy()
    for place in changes:
        now[place % size] ^= 1
    changed = changed_blocks(before, now)
    assert set(changed.tolist()) == {number for number in range(-(-size // BLOCK_BYTES)) if _differs(before, now, number)}
    path = tmp_path_factory.mktemp("blocks") / "rank.changes"
    assert write_blocks(path, memoryview(now), changed) == path.stat().st_size
    apply_blocks(path, memoryview(before))
    assert np.array_equal(before, now)


def _differs(before: np.ndarray, now: np.ndarray, number: int) -> bool:
    block = slice(number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES)
    return not np.array_equal(before[block], now[block])
