"""Weight files of other nodes as they lie on one; what fetches them writes what a test wants."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest
import torch

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import WeightFile
from asyncrl.weights.shm.memory_file import MemoryFull
from asyncrl.weights.shm.mirrored_files import MirroredFiles

V1, V2, V3, V4 = (PolicyVersion(version) for version in (1, 2, 3, 4))
MINUTE = 60.0


@pytest.fixture
def mirrored(tmp_path: Path) -> Iterator[MirroredFiles]:
    with closing(MirroredFiles("run", "other", str(tmp_path))) as made:
        yield made


def written(*contents: bytes, node: str = "learner") -> tuple[WeightFile, ...]:
    return tuple(WeightFile(f"rank{rank}", node, len(content)) for rank, content in enumerate(contents))


def writes(*contents: bytes) -> Callable[[Mapping[int, memoryview], threading.Event], None]:
    def fetch(memory: Mapping[int, memoryview], stop: threading.Event) -> None:
        for number, there in memory.items():
            there[:] = contents[number]

    return fetch


def bring(mirrored: MirroredFiles, version: PolicyVersion, *contents: bytes) -> tuple[WeightFile, ...]:
    return mirrored.fill(version, written(*contents), writes(*contents))


def contents_of(files: Sequence[WeightFile]) -> tuple[bytes, ...]:
    return tuple(Path(file.path).read_bytes()[: file.size] for file in files)


def test_a_publication_stays_while_the_next_one_arrives_and_files_are_used_again(mirrored: MirroredFiles) -> None:
    earlier = bring(mirrored, V1, b"first", b"")
    later = bring(mirrored, V2, b"second", b"x")
    assert (contents_of(earlier), contents_of(later)) == ((b"first", b""), (b"second", b"x"))
    assert [(file.node, file.size) for file in later] == [("other", 6), ("other", 1)]
    assert bring(mirrored, V3, b"third", b"") == earlier
    assert (contents_of(earlier), contents_of(later)) == ((b"third", b""), (b"second", b"x"))


def test_what_lies_on_the_node_already_is_not_fetched(mirrored: MirroredFiles) -> None:
    (near,), (far,) = written(b"near", node="other"), written(b"far")
    here = mirrored.fill(V1, [near, far], writes(b"", b"far"))
    assert here[0] is near
    assert contents_of(here[1:]) == (b"far",)


def test_what_did_not_arrive_is_overwritten_first(mirrored: MirroredFiles) -> None:
    earlier = bring(mirrored, V1, b"first")

    def fails(memory: Mapping[int, memoryview], stop: threading.Event) -> None:
        memory[0][:3] = b"sec"
        raise ComponentFailed("the line broke")

    with pytest.raises(ComponentFailed, match="the line broke"):
        mirrored.fill(V2, written(b"second"), fails)
    later = bring(mirrored, V2, b"second")
    assert (contents_of(earlier), contents_of(later)) == ((b"first",), (b"second",)), "an engine may read the version before"


def test_a_version_that_nobody_waits_for_any_more_gives_its_files_to_the_next_but_one(mirrored: MirroredFiles) -> None:
    """The engine that asked for version 1 is gone, and its bytes may still arrive when version 3 is to lie there."""
    fetching, raised = threading.Event(), list[ComponentFailed]()

    def hangs(memory: Mapping[int, memoryview], stop: threading.Event) -> None:
        fetching.set()
        assert stop.wait(MINUTE)

    def ask() -> None:
        try:
            mirrored.fill(V1, written(b"first"), hangs)
        except ComponentFailed as error:
            raised.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert fetching.wait(MINUTE)
    bring(mirrored, V2, b"second")
    third = bring(mirrored, V3, b"third")
    asking.join(MINUTE)
    assert [str(error).split(":")[0] for error in raised] == ["version 1 of the weights was given up"]
    assert contents_of([*third, *bring(mirrored, V4, b"fourth")]) == (b"third", b"fourth")


def test_what_a_dead_mirror_left_can_be_read_while_its_successor_fetches(mirrored: MirroredFiles, tmp_path: Path) -> None:
    (earlier,) = bring(mirrored, V1, b"first")
    mapped = torch.from_file(earlier.path, shared=False, size=earlier.size, dtype=torch.uint8)
    with closing(MirroredFiles("run", "other", str(tmp_path))) as successor:  # the first one is still there, and removes nothing
        (later,) = bring(successor, V2, b"again")
        assert (later.path, contents_of([later])) == (earlier.path, (b"again",))
        assert mapped.numpy().tobytes() == b"first"


def test_a_full_memory_file_system_is_an_error_with_a_remedy(mirrored: MirroredFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(MemoryFull, match=r"no room for 5 bytes of weights.*Two versions must fit"):
            bring(mirrored, V1, b"first")
    assert contents_of(bring(mirrored, V1, b"first")) == (b"first",), "room was made: the same version is fetched"


def test_files_of_a_killed_run_are_removed_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.weights.shm.memory_file.memory_file_system", lambda: tmp_path)
    killed, living = (MirroredFiles(run, "n") for run in ("killed[1]", "living"))
    with closing(killed), closing(living):
        for each in (killed, living):
            bring(each, V1, b"x")
        MirroredFiles.remove_left_behind("killed[1]")
        assert [path.name for path in tmp_path.iterdir()] == ["asyncrl-living-mirror-n-even-0"]
    assert [*tmp_path.iterdir()] == []
