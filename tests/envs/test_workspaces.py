"""Folders of episodes: each is removed with its episode, and those of killed workers with the next start."""

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asyncrl.core.errors import ComponentFailed
from asyncrl.envs.workspaces import Workspaces, remove_tree

KILLED = """
import os, signal, sys
from pathlib import Path
from asyncrl.envs.workspaces import Workspaces

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


def test_read_only_folders_and_links_are_removed_and_nothing_outside(tmp_path: Path):
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "file").write_text("x")
    (folder / "link").symlink_to(outside)
    (folder / "deep" / "link").symlink_to(outside / "kept")
    (folder / "deep" / "er").chmod(stat.S_IRUSR)
    (folder / "deep").chmod(stat.S_IRUSR | stat.S_IXUSR)
    remove_tree(folder)
    assert not folder.exists()
    assert (outside / "kept").read_text() == "kept"


def test_a_root_that_cannot_be_used_is_told_with_a_remedy(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ComponentFailed, match=r"generator-1 cannot make a folder .* set TMPDIR"):
        Workspaces("generator-1", tmp_path / "file")


def test_a_lock_that_is_never_given_back_is_waited_for_until_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("asyncrl.envs.workspaces.LOCKED_S", 0.2)
    worker = Workspaces("generator-1", tmp_path)
    lock = os.open(tmp_path / ".lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(ComponentFailed, match=r"generator-2 cannot make .* another worker has held .*\.lock for 0\.2 s"):
        Workspaces("generator-2", tmp_path)
    worker.close()
    assert worker.folder.is_dir(), "left to the next worker that starts"
    os.close(lock)
    Workspaces("generator-3", tmp_path).close()
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
