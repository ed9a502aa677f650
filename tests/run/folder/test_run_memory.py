import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

from asyncrl.core.files.memory_files import memory_file_system
from asyncrl.core.files.memory_owners import MemoryOwner, abandoned_runs, owner_file
from asyncrl.run.folder.run_memory import free_memory_of, memory_held, sweep_memory
from asyncrl.run.host.ray_calls import INLINE_BYTES
from asyncrl.run.models.model_identity import model_files
from asyncrl.run.nodes.model_folder import ModelFolder
from asyncrl.run.nodes.remote_files import NodeFiles


def test_what_a_run_keeps_in_memory_is_removed_and_nothing_of_another_run(tmp_path: Path) -> None:
    over, other = uuid4().hex, uuid4().hex
    kinds = ("rank0-0", "mirror-node-even-0", "disk-node-0-0", "payload")
    kept = {run: [memory_file_system() / f"asyncrl-{run}-{kind}" for kind in kinds] for run in (over, other)}
    try:
        for *files, payload in kept.values():
            payload.mkdir()
            for file in files:
                file.touch()
        NodeFiles().forget_run(over, [])
        assert not any(path.exists() for path in kept[over])
        assert all(path.exists() for path in kept[other])
    finally:
        for run in (over, other):
            NodeFiles().forget_run(run, [])


KINDS = ("rank0-0", "mirror-node-even-0", "disk-node-0-0", "ranks")
HOLDER = """
import sys
from asyncrl.core.files.memory_owners import MemoryOwner
held = MemoryOwner(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(run: str) -> Iterator[subprocess.Popen[str]]:
    """A process of a run, which holds what the run has in memory until it is killed."""
    command = [sys.executable, "-c", HOLDER, run]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def kept_in_memory(run: str) -> list[Path]:
    """Make files such as a run has in memory."""
    files = [memory_file_system() / f"asyncrl-{run}-{kind}" for kind in KINDS]
    for file in files:
        file.touch()
    payload = memory_file_system() / f"asyncrl-{run}-payload"
    (payload / "shard-0").mkdir(parents=True)
    return [*files, payload, owner_file(run)]


def there(paths: list[Path]) -> set[bool]:
    return {path.exists() for path in paths}


def test_the_next_launch_removes_from_memory_what_no_living_process_of_a_run_holds() -> None:
    run, living, without_owner = (uuid4().hex for _ in range(3))
    try:
        left, kept, unknown = kept_in_memory(run), kept_in_memory(living), kept_in_memory(without_owner)[:-1]
        with holding(living), holding(run) as driver, holding(run) as rank:
            driver.kill()
            driver.wait()
            sweep_memory()
            assert there(left) == {True}, "a rank of the run lives still"
            rank.kill()
            rank.wait()
            with memory_held(uuid4().hex):  # as a launch does
                assert there(left) == {False}
            assert there(kept) == {True}
            assert there(unknown) == {True}, "nothing says whose it is"
    finally:
        for each in (run, living, without_owner):
            free_memory_of(each)


def test_a_launch_that_is_over_leaves_no_owner_file() -> None:
    run = uuid4().hex
    with memory_held(run):
        assert owner_file(run).exists()
        sweep_memory()
        assert owner_file(run).exists(), "the launch itself lives"
    assert not owner_file(run).exists()


def test_the_last_process_of_a_run_that_ends_by_itself_removes_the_owner_file() -> None:
    run = uuid4().hex
    one, other = MemoryOwner(run), MemoryOwner(run)
    one.close()
    assert owner_file(run).exists()
    other.close()
    assert not owner_file(run).exists()


def test_whoever_takes_hold_while_a_run_is_removed_holds_a_file_of_its_own() -> None:
    run = uuid4().hex
    owner_file(run).touch()
    for each in abandoned_runs():
        if each == run:
            owner_file(run).unlink()  # what is locked has no name any more
            later = MemoryOwner(run)
    try:
        sweep_memory()
        assert owner_file(run).exists()
    finally:
        later.close()
        free_memory_of(run)


def test_a_name_that_leads_elsewhere_is_no_owner_file(tmp_path: Path) -> None:
    run, target = uuid4().hex, tmp_path / "of somebody"
    target.touch()
    owner_file(run).symlink_to(target)
    try:
        sweep_memory()
        assert owner_file(run).is_symlink()
        MemoryOwner(run).close()  # it is refused, and the run goes on
        assert target.exists()
    finally:
        free_memory_of(run)


def test_a_copy_of_a_model_that_was_made_for_a_run_goes_with_it_and_other_copies_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("asyncrl.run.nodes.model_folder.ask_blocking", lambda answer, **_: answer)

    asked: list[int] = []
    room = {"exported": 0, "base": 1 << 40}  # without room, nothing may go through the object store
    monkeypatch.setattr("asyncrl.run.nodes.model_folder.free_memory", lambda: 1 << 40)

    def model_of_another_node(name: str) -> ModelFolder:
        there, here = tmp_path / "another node" / name, tmp_path / name
        there.mkdir(parents=True)
        (there / "config.json").write_text(name)

        def read(path: Path, offset: int, limit: int) -> bytes:
            asked.append(limit)
            return NodeFiles().read(there / path.relative_to(here), offset, limit)

        source = SimpleNamespace(read=SimpleNamespace(remote=read), answer=SimpleNamespace(remote=lambda: room[name]))
        return ModelFolder(here, model_files(there), source)

    exported, base = (model_of_another_node(name) for name in ("exported", "base"))
    with exported.loading() as copy, base.loading() as base_copy:
        assert [(each / "config.json").read_text() for each in (copy, base_copy)] == ["exported", "base"]
        assert asked == [INLINE_BYTES, 8 << 20]
        with exported.loading() as same:  # another engine on the node; nobody waits
            assert same == copy
            NodeFiles().forget_run(uuid4().hex, [], exported)
        NodeFiles().forget_run(uuid4().hex, [], exported)
        assert copy.is_dir(), "somebody else loads it still"
    with (copy.parent / "lock").open() as lock:  # as somebody has it who makes the copy at this moment
        fcntl.flock(lock, fcntl.LOCK_EX)
        NodeFiles().forget_run(uuid4().hex, [], exported)
    assert copy.is_dir()
    NodeFiles().forget_run(uuid4().hex, [], exported)
    assert [path.name for path in (tmp_path / "cache").rglob("*.json")] == ["config.json"]
    assert base_copy.is_dir()
    with exported.loading() as again:
        assert (again / "config.json").read_text() == "exported"
