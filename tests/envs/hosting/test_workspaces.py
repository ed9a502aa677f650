"""Folders of episodes: each is removed with its episode, and those of killed workers with the next start."""

import errno
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from nested_folders import nest, removed_for_sure
from ordinary_user import as_ordinary_user
from others_folders import file, link, writable

from asyncrl.core.errors import ComponentFailed
from asyncrl.envs.hosting.workspaces import Workspaces

KILLED = """
import os, signal, sys
from pathlib import Path
from asyncrl.envs.hosting.workspaces import Workspaces

workspaces = Workspaces("killed", Path(sys.argv[1]))
folder = workspaces.next()
folder.mkdir()
(folder / "file").write_text("left behind")
os.kill(os.getpid(), signal.SIGKILL)
"""


def folders(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.is_dir()}


def test_what_a_killed_worker_leaves_behind_goes_with_the_next_start(tmp_path: Path):
    living = Workspaces("living", tmp_path)
    living.next().mkdir()
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(folders(tmp_path)) == 2
    started = Workspaces("started", tmp_path)
    assert folders(tmp_path) == {living.folder.name, started.folder.name}
    started.close()
    living.close()
    assert folders(tmp_path) == set()


def left_by_a_killed_worker(root: Path) -> Path:
    """A folder as a killed worker leaves it: nobody has locked it."""
    folder = root / f"killed-{os.getpid()}-0123abcd"
    (folder / "episode-0").mkdir(parents=True)
    return folder


def test_folders_without_end_are_swept_and_stop_no_worker():
    with removed_for_sure() as root:
        os.close(nest(left_by_a_killed_worker(root) / "episode-0", 3000))
        started = Workspaces("started", root)
        assert folders(root) == {started.folder.name}
        os.close(nest(started.folder, 3000))
        started.close()
        assert folders(root) == set()


def test_what_cannot_be_swept_is_named_and_stops_no_worker(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    if os.getuid() != 0:
        pytest.skip("only root can make what an ordinary user cannot remove")
    tmp_path.chmod(0o700)
    for folder in ("a-1-0123abcd", "b-1-0123abcd", "c-1-0123abcd"):
        (tmp_path / folder / "episode-0" / "others").mkdir(parents=True)
    (tmp_path / "b-1-0123abcd" / "episode-0" / "others" / "file").write_text("")
    os.chown(tmp_path / "b-1-0123abcd" / "episode-0" / "others", 12345, 12345)
    logged, swept = as_ordinary_user(swept_by_a_worker, tmp_path)
    assert swept == {"b-1-0123abcd"}
    assert "b-1-0123abcd of a worker that is gone is left behind" in logged
    assert "episode-0/others/file (Permission denied)" in logged


def swept_by_a_worker(root: Path) -> tuple[str, set[str]]:
    """What a worker of an ordinary user logs, and what is left when it has ended."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("asyncrl").addHandler(handler)
    Workspaces("started", root).close()
    return "\n".join(records), folders(root)


def test_what_killed_workers_have_left_is_swept_first_since_it_may_be_what_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    left, mkdir = left_by_a_killed_worker(tmp_path), os.mkdir

    def on_a_full_disk(*arguments: Any, **options: Any) -> None:
        if left.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        mkdir(*arguments, **options)

    monkeypatch.setattr(os, "mkdir", on_a_full_disk)
    Workspaces("generator-1", tmp_path).close()
    assert folders(tmp_path) == set()


@pytest.mark.parametrize("name", ["keep", "keep-1", "keep-x-0123abcd", "keep-1-0123ABCD", "1-0123abcd", "keep-1-0123abcd.d"])
def test_what_has_another_name_than_workers_give_is_not_swept(name: str, tmp_path: Path):
    (tmp_path / name).mkdir()
    left_by_a_killed_worker(tmp_path)
    Workspaces("started", tmp_path).close()
    assert folders(tmp_path) == {name}


def test_links_in_the_root_and_in_place_of_a_lock_are_not_followed(tmp_path: Path):
    outside, root = tmp_path / "outside", tmp_path / "root"
    (outside / "episode-0").mkdir(parents=True)
    folder = left_by_a_killed_worker(root)
    (root / "linked-1-0123abcd").symlink_to(outside)
    (folder / ".lock").symlink_to(outside / "lock")
    Workspaces("started", root).close()
    assert sorted(path.name for path in outside.iterdir()) == ["episode-0"]


@pytest.mark.parametrize("made", [link, writable, file])
def test_a_root_that_is_not_ours_alone_is_refused_with_a_remedy_and_not_swept(made: Callable[[Path], None], tmp_path: Path):
    root = tmp_path / "root"
    made(root)
    if root.is_dir():
        left_by_a_killed_worker(root)
    with pytest.raises(ComponentFailed, match=r"generator-1 cannot make a folder .*root.* set TMPDIR"):
        Workspaces("generator-1", root)
    assert not root.is_dir() or len(folders(root)) == 1


def test_a_lock_that_is_never_given_back_is_waited_for_until_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("asyncrl.envs.hosting.workspaces.LOCKED_S", 0.2)
    worker = Workspaces("generator-1", tmp_path)
    lock = os.open(tmp_path / ".lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(ComponentFailed, match=r"generator-2 cannot make .* another worker has held .*\.lock for 0\.2 s"):
        Workspaces("generator-2", tmp_path)
    worker.close()
    os.close(lock)
    assert folders(tmp_path) == set()


class Workers(RuleBasedStateMachine):
    """Workers start, end and die in any order. Their locks are those of this process, which closing them gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(mkdtemp())
        self.living: list[Workspaces] = []
        self.dead: set[str] = set()

    @rule()
    def start(self) -> None:
        self.living.append(Workspaces("worker", self.root))
        self.dead.clear()

    @rule()
    def play(self) -> None:
        for worker in self.living:
            worker.next().mkdir()

    @rule()
    def end(self) -> None:
        if self.living:
            self.living.pop(0).close()

    @rule()
    def die(self) -> None:
        if self.living:
            worker = self.living.pop()
            os.close(worker._lock)  # as the system does when a process ends
            self.dead.add(worker.folder.name)

    @invariant()
    def only_those_of_living_workers_and_of_the_newly_dead_are_there(self) -> None:
        assert folders(self.root) == {worker.folder.name for worker in self.living} | self.dead

    def teardown(self) -> None:
        for worker in self.living:
            worker.close()
        shutil.rmtree(self.root)


Workers.TestCase.settings = settings(max_examples=20, stateful_step_count=15, deadline=None)
TestWorkers = Workers.TestCase
