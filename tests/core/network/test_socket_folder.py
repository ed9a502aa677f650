"""Sockets can be made whatever ``TMPDIR`` is."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from asyncrl.core.network.socket_folder import LONGEST, socket_folder


@pytest.fixture
def long_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files whose path alone is longer than a socket's may be."""
    folder = tmp_path / ("x" * max(1, 121 - len(str(tmp_path)) - 1))
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def test_the_folder_for_temporary_files_is_taken_where_it_leaves_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    room = LONGEST - len(str(tmp_path))
    assert socket_folder(room) == tmp_path
    assert socket_folder(room + 1) != tmp_path


def test_a_socket_can_be_made_below_a_long_folder_for_temporary_files(long_folder: Path) -> None:
    with pytest.raises(OSError, match="AF_UNIX path too long"), socket.socket(socket.AF_UNIX) as made:
        made.bind(str(long_folder / "socket"))
    with tempfile.TemporaryDirectory(dir=socket_folder(40)) as folder, socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.join(folder, "socket"))


SERVED = """
import tempfile
from multiprocessing import forkserver
from asyncrl.envs.hosting.workspaces import default_root
from asyncrl.generators.vllm.cpu.engine_process import EngineProcessServer
forkserver.set_forkserver_preload = lambda modules: None  # importing vLLM takes long
EngineProcessServer.start().close()
print(default_root().parent)
"""


def test_the_process_that_engines_are_forked_from_starts_there(long_folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SERVED], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(long_folder), "episodes have their folders where the user wants them"


def test_ray_starts_there(long_folder: Path) -> None:
    ray = "import ray, asyncrl.run.host.ray_cluster as c; c.start_ray(); print(ray.is_initialized()); c.stop_ray()"
    done = subprocess.run([sys.executable, "-c", ray], capture_output=True, text=True, timeout=300, check=False)
    assert "True" in done.stdout, done.stderr
