"""Nothing of an engine's processes stays in ``TMPDIR``: neither when the generator ends as Ray ends it, nor when it is killed."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.core.errors import ComponentFailed
from asyncrl.envs.hosting.workspaces import Workspaces
from asyncrl.generators.vllm.engine_folder import EngineFolder

GENERATOR = """
import os, sys, tempfile
from multiprocessing import forkserver
from unittest import mock
from asyncrl.generators.vllm.cpu.engine_process import EngineProcessServer

CHILD = "import tempfile; open(tempfile.mkdtemp() + '/pipe', 'w')"

with mock.patch.object(forkserver, "set_forkserver_preload"):  # vLLM takes long to import
    server = EngineProcessServer.start()
with server.folder.used():
    os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", CHILD)
print(server.folder.path, tempfile.gettempdir(), os.environ["TMPDIR"], sep="\\n", flush=True)
sys.stdin.readline()
server.close()
os._exit(0)  # as Ray ends an actor
"""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary folder with a short name, as a socket's path must be."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)


@pytest.fixture
def generator(temporary: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", GENERATOR],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def root_of(temporary: Path) -> Path:
    return temporary / f"asyncrl-{os.getuid()}"


def engine_folder(generator: subprocess.Popen[str], temporary: Path) -> Path:
    """The folder of the generator's engine, where its processes keep all their files, while the generator's own stay outside."""
    assert generator.stdout is not None
    folder, *own = (Path(generator.stdout.readline().strip()) for _ in range(3))
    assert own == [temporary, temporary]
    assert folder.parent == root_of(temporary)
    assert {path.name.partition("-")[0] for path in folder.iterdir() if path.name != ".lock"} >= {"listener"}
    assert list(folder.glob("*/pipe"))
    assert list(temporary.iterdir()) == [folder.parent]
    return folder


def test_a_generator_that_ray_ends_leaves_nothing(generator: subprocess.Popen[str], temporary: Path) -> None:
    folder = engine_folder(generator, temporary)
    generator.communicate("close\n", timeout=60)
    assert not folder.exists()
    assert [path.name for path in temporary.rglob("*")] in ([folder.parent.name, ".lock"], [folder.parent.name])


def test_what_a_killed_generator_leaves_goes_with_the_next_start(generator: subprocess.Popen[str], temporary: Path) -> None:
    folder = engine_folder(generator, temporary)
    Workspaces("other", root_of(temporary)).close()
    assert folder.exists(), "its generator lives"
    generator.kill()
    generator.wait()
    Workspaces("other", root_of(temporary)).close()
    assert not folder.exists()


def test_a_folder_that_cannot_be_made_is_named(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    root_of(temporary).touch()
    with pytest.raises(ComponentFailed, match=r"no place for the sockets of an engine: .*asyncrl-\d+.*TMPDIR"):
        EngineFolder()
