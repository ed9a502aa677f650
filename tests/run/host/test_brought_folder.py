"""The folder that Ray brings to the nodes of a cluster; that it comes there is seen in tests/run/nodes/test_hosts.py."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import cloudpickle
import pytest
from ray._private.runtime_env import packaging

from asyncrl.core.plug_ins.given_code import write_module
from asyncrl.run.host import brought_folder
from asyncrl.run.host.brought_folder import folder_to_bring, runtime_env


def _make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_what_is_counted_is_what_ray_packs(tmp_path: Path) -> None:
    """Runs stay, but for those that the recipe names, with MLflow's records beside them; so does what is hidden or ignored."""
    folder = tmp_path / "project"
    _make(folder, *(f"runs/{run}/{file}" for run in ("one", "two", "[3]") for file in ("recipe.yaml", "driver.lock", "a.log")))
    _make(folder, "runs/mlflow.db", "runs/mlflow-artifacts/a", ".env", "code/.cache/a", "venv/a.py", "code/__pycache__/a.pyc")
    _make(folder, "code/recipe.yaml", "code/mine.py", "data/tasks.jsonl", "data/large", "mlflow.db")
    (folder / ".gitignore").write_text("large\n")
    os.mkfifo(folder / "pipe")
    found = folder_to_bring(folder, "model: {path: runs/two/model}")
    packaging.create_package(folder, tmp_path / "package.zip", include_gitignore=True, excludes=list(found.excludes))
    with ZipFile(tmp_path / "package.zip") as package:
        went = {each.filename: each.file_size for each in package.infolist() if not each.is_dir()}
    run = [f"runs/two/{name}" for name in ("recipe.yaml", "driver.lock", "a.log")]
    assert sorted(went) == sorted(["code/recipe.yaml", "code/mine.py", "data/tasks.jsonl", "mlflow.db", *run])
    assert (found.size, found.problem) == (sum(went.values()), "")


def test_a_folder_that_is_too_large_stays_and_the_user_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _make(tmp_path, "tasks.jsonl", "more.jsonl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(brought_folder, "MOST_FILES", 2)
    told = list[str]()
    assert "working_dir" not in runtime_env(told.append)
    too_much = "it holds more than 500 MiB or 2 files; name in .rayignore what they do not need"
    assert told == [f"{tmp_path} is not brought to other nodes: {too_much}"]
    (tmp_path / ".rayignore").write_text("more*\n")
    told.clear()
    assert runtime_env(told.append)["working_dir"] == str(tmp_path)
    assert told == []


def test_a_job_has_brought_its_folder_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray refuses a second one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"runtime_env": {"working_dir": "gcs://_ray_pkg_0123.zip"}}')
    assert "working_dir" not in runtime_env(pytest.fail)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"runtime_env": {"env_vars": {}}}')
    assert runtime_env(pytest.fail)["working_dir"] == str(tmp_path)


_WORKER = """
import os, pickle, subprocess, sys
pickle.loads(bytes.fromhex(sys.argv[1]))()
assert "asyncrl" not in sys.modules
import mine
child = subprocess.run([sys.executable, "-c", "import mine; print(mine.WHERE)"], capture_output=True, text=True, cwd="/")
print(os.getcwd(), mine.WHERE, child.stdout.strip())
"""


@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_a_process_works_in_the_folder_itself_only_where_that_is_the_driver_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A folder of the same name on another node may hold anything."""
    copy, folder = tmp_path / "copy", tmp_path / "folder"
    for made, where in ((copy, "elsewhere"), (folder, "here")):
        write_module("mine", f"WHERE = {where!r}", made)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    with monkeypatch.context() as another:
        if place == "elsewhere":
            another.setattr(os, "readlink", lambda path: "another name space")
        begin = cloudpickle.dumps(brought_folder._as_here(True)).hex()
    python_path = os.pathsep.join([str(copy), str(folder), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-P", "-c", _WORKER, begin],
        cwd=copy,  # as Ray does
        env={**os.environ, "PYTHONPATH": python_path},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == [str(folder if place == "here" else copy), place, place]
