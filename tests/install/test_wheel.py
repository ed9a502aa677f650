"""The built wheel, installed away from the clone: it brings all it needs, and no name that a module of a user could have."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("asyncrl", "buffers", "generators", "learners", "recipes")
BESIDE = ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "tests/install/test_wheel.py")
BUILD = "import setuptools.build_meta as build, sys; print(getattr(build, f'build_{sys.argv[1]}')(sys.argv[2]))"
OWN = """
from generators.words import PROMPT
from learners import NOTHING
from recipes.common import ADDED

from asyncrl.envs.builtin.calculator import Calculator


class Own(Calculator):
    system_prompt = PROMPT + NOTHING + ADDED
"""


def build(kind: str, source: Path, to: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, kind, str(to)], cwd=source, check=True, capture_output=True, text=True, timeout=300
    )
    return to / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is built from it as pip does."""
    source, to = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for part in (*PARTS, *BESIDE):
        (source / part).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "--archive", str(ROOT / part), str(source / part)], check=True)
    sdist = build("sdist", source, to)
    with tarfile.open(sdist) as archive:
        archive.extractall(source / "unpacked", filter="data")
    (unpacked,) = (source / "unpacked").iterdir()
    return sdist, build("wheel", unpacked, to)


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment that has the wheel, and sees the other packages of this one."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(built[1])], check=True, timeout=300)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "packages_of_the_tests.pth").write_text(sysconfig.get_path("purelib"))  # where no .pth of theirs is read
    return folder / "bin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder, whose modules are called as folders of our clone are."""
    for name, text in {
        "buffers.py": OWN,
        "generators/words.py": "PROMPT = 'Use the calculator.'",
        "learners/__init__.py": "NOTHING = ''",
        "recipes/common.py": "ADDED = ' One operation a call.'",
        "recipes/mine.yaml": "defaults: [quickstart, _self_]\nname: mine\nenvironment: {name: 'buffers:Own'}\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(*command: str, where: Path, path: str | None = None) -> str:
    """What a command prints that knows nothing of the clone."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {} if path is None else {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_source_distribution_has_no_tests_and_the_wheel_one_name(built: tuple[Path, Path]):
    with tarfile.open(built[0]) as archive:
        names = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"asyncrl", "LICENSE", "CHANGELOG.md"} <= names
    assert not {"tests", "docs", *PARTS[1:]} & names
    with zipfile.ZipFile(built[1]) as wheel:
        assert {name.split("/")[0].partition("-")[0] for name in wheel.namelist()} == {"asyncrl"}


def test_shipped_recipes_are_found(installed: Path, tmp_path: Path):
    script = "import asyncrl, asyncrl.run.recipe.compose as c; print(asyncrl.__file__); print(*c.shipped_recipes())"
    place, names = run(str(installed / "python"), "-c", script, where=tmp_path).splitlines()
    assert Path(place).is_relative_to(installed.parent)
    assert names.split() == sorted(file.stem for file in (ROOT / "recipes").glob("*.yaml"))
    assert "name: quickstart" in run(str(installed / "asyncrl"), "launch", "quickstart", "--dry-run", where=tmp_path)


@pytest.mark.parametrize("first_on_the_path", [False, True])
def test_modules_of_the_user_keep_their_names(installed: Path, project: Path, first_on_the_path: bool):
    path = str(project) if first_on_the_path else None
    command = [str(installed / "asyncrl")] if first_on_the_path else [str(installed / "python"), "-m", "asyncrl.cli.main"]
    shown = run(*command, "launch", "recipes/mine.yaml", "--dry-run", where=project, path=path)
    assert "buffers:Own" in shown


@pytest.mark.timeout(600)
def test_a_run_of_the_users_own_environment(installed: Path, project: Path):
    few = ["steps=2", "tasks.train=100", "tasks.evaluation=8", "generators.kv_cache_mb=64", "batch.groups_per_step=4"]
    shown = run(str(installed / "asyncrl"), "launch", "recipes/mine.yaml", *few, where=project)
    assert "mine completed" in shown
    (folder,) = (project / "runs").glob("mine-*")
    assert (folder / "model" / "config.json").is_file()
