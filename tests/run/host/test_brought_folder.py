"""The folder that Ray brings to the nodes of a cluster; that it comes there is seen in tests/run/nodes/test_hosts.py."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import cloudpickle
import pytest
import ray
from ray._private.runtime_env import packaging
from ray.exceptions import RuntimeEnvSetupError

from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.core.plug_ins.given_code import write_module
from asyncrl.run.host import brought_folder, ray_cluster
from asyncrl.run.host.brought_folder import folder_to_bring, runtime_env
from asyncrl.run.host.ray_calls import translated
from asyncrl.run.jobs.submission import submit


def _make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_what_is_counted_is_what_ray_packs(tmp_path: Path) -> None:
    """Runs stay, but for those that the recipe names, with MLflow's records beside them; so does what is hidden or ignored, and
    where Ray keeps its sessions."""
    folder = tmp_path / "project"
    _make(folder, *(f"runs/{run}/{file}" for run in ("one", "two", "[3]") for file in ("recipe.yaml", "driver.lock", "a.log")))
    _make(folder, "runs/mlflow.db", "runs/mlflow-artifacts/a", ".env", "code/.cache/a", "venv/a.py", "code/__pycache__/a.pyc")
    _make(folder, "code/recipe.yaml", "code/mine.py", "data/tasks.jsonl", "data/large", "mlflow.db")
    _make(folder, "ray/session_1/package.zip")
    (folder / "ray/session_latest").symlink_to("session_1")
    (folder / ".gitignore").write_text("large\n")
    os.mkfifo(folder / "pipe")
    found = folder_to_bring(folder, "model: {path: runs/two/model}")
    packaging.create_package(folder, tmp_path / "package.zip", include_gitignore=True, excludes=list(found.excludes))
    with ZipFile(tmp_path / "package.zip") as package:
        went = {each.filename: each.file_size for each in package.infolist() if not each.is_dir()}
    run = [f"runs/two/{name}" for name in ("recipe.yaml", "driver.lock", "a.log")]
    assert sorted(went) == sorted(["code/recipe.yaml", "code/mine.py", "data/tasks.jsonl", "mlflow.db", *run])
    assert (found.size, found.problem) == (sum(went.values()), "")


def test_a_folder_that_is_too_large_stays_and_the_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _make(tmp_path, "tasks.jsonl", "more.jsonl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(brought_folder, "MOST_FILES", 2)
    told = list[str]()
    assert "working_dir" not in runtime_env(told.append)
    too_much = "it holds more than 500 MiB or 2 files; name in .rayignore what other nodes do not need"
    assert told == [f"{tmp_path} is not brought to other nodes: {too_much}"]
    assert caplog.messages == [], "Ray says nothing of its own"
    (tmp_path / ".rayignore").write_text("more*\n")
    told.clear()
    assert runtime_env(told.append)["working_dir"] == str(tmp_path)
    assert told == [f"Ray brings {tmp_path}, 1 files, 0 MiB, to other nodes"]


def test_links_out_of_the_folder_or_back_environments_and_secrets_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would pack what lies elsewhere, and a folder that a link leads back to until names are too long."""
    folder = tmp_path / "project"
    _make(tmp_path, "elsewhere/large")
    _make(folder, "mine.py", "a/one.py", "b/two.py", "my env/pyvenv.cfg", "my env/lib.py", "code/tls.key", "code/tls.pem")
    _make(folder, "credentials.json", "credentials-mine.json", "id_rsa", "id_rsa.pub", ".netrc", "keys.py", "hidden.py")
    leads = {
        "data": "../elsewhere",
        "large": "../elsewhere/large",
        "a/back": "..",
        "a/b": "../b",
        "b/a": "../a",
        "same.py": "mine.py",
    }
    for link, target in (leads | {"gone": "nowhere", "loop": "loop", "known": "../elsewhere"}).items():
        (folder / link).symlink_to(target)
    (folder / ".gitignore").write_text("known\nhidden.py\n")
    found = folder_to_bring(folder)
    packaging.create_package(folder, tmp_path / "package.zip", include_gitignore=True, excludes=list(found.excludes))
    with ZipFile(tmp_path / "package.zip") as package:
        went = [each.filename for each in package.infolist() if not each.is_dir()]
    assert sorted(went) == ["a/b/two.py", "a/one.py", "b/a/one.py", "b/two.py", "keys.py", "mine.py", "same.py"]
    assert found.files == len(went)
    assert found.links == ("a/b/a", "a/back", "b/a/b", "b/a/back", "data", "large")
    monkeypatch.chdir(folder)
    told = list[str]()
    runtime_env(told.append)
    said = "7 files, 0 MiB, to other nodes, without links out of it or back (6, the first: a/b/a)"
    assert told == [f"Ray brings {folder}, {said}"]


@pytest.mark.parametrize(
    ("recipe", "goes"),
    [
        ("model: {path: runs/ab/model}", "runs/ab"),
        ("model: {path: ./runs/a}", "runs/a"),
        ("sources: [{'name:runs/a/episodes': 1}]", "runs/a"),
        ("model: {path: others/runs/a}", ""),
        ("", ""),
    ],
)
def test_a_run_goes_if_the_recipe_names_it_by_a_whole_path(tmp_path: Path, recipe: str, goes: str) -> None:
    for run in ("a", "ab"):
        _make(tmp_path / "runs" / run, "recipe.yaml", "driver.lock")
    excludes = folder_to_bring(tmp_path, recipe.replace("./runs", f"{tmp_path}/runs")).excludes
    assert [run for run in ("runs/a", "runs/ab") if f"/{run}" not in excludes] == [*filter(None, [goes])]


@pytest.mark.parametrize("place", ["home", "/"])
def test_neither_home_nor_root_is_brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = folder_to_bring(tmp_path if place == "home" else Path("/"))
    assert found.problem == ("it is your home folder" if place == "home" else "it is the root of the file system")
    monkeypatch.chdir(found.path)
    told = list[str]()
    assert "working_dir" not in runtime_env(told.append)
    assert told == [f"{found.path} is not brought to other nodes: {found.problem}; launch from the project's folder"]
    with pytest.raises(RecipeError, match=r"cannot go with the job: it is .*launch from the project's folder"):
        submit("http://127.0.0.1:9", "one", ["launch"], found)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\n", "is not UTF-8 text"),
        (b"!\n", "has a pattern that Ray refuses"),
        (b"[z-a]\n", "has a pattern that Ray refuses"),
    ],
    ids=["not text", "no pattern", "no range"],
)
@pytest.mark.parametrize("name", [".rayignore", "code/.gitignore"])
def test_an_ignore_file_that_cannot_be_used_is_named(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    _make(tmp_path, name, "code/mine.py")
    (tmp_path / name).write_bytes(content)
    found = folder_to_bring(tmp_path)
    assert found.problem.startswith(f"{name} in it {why}")
    assert found.remedy == "mend that file: UTF-8 text with one pattern on a line"


def test_what_ray_cannot_pack_or_unpack_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    full = RuntimeEnvSetupError("Failed to upload: no space left")

    def fail(**_: object) -> None:
        raise full

    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    monkeypatch.setattr(ray_cluster, "runtime_env", lambda tell: {})
    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(ComponentFailed, match=r"what they need: Failed to upload: no space left; make room where Ray keeps"):
        ray_cluster.start_ray()
    assert str(translated(full, "generator-0")).endswith(
        "check the disk of that node, or name in .rayignore what it does not need"
    )


def test_a_job_has_brought_its_folder_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray refuses a second one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"runtime_env": {"working_dir": "gcs://_ray_pkg_0123.zip"}}')
    assert "working_dir" not in runtime_env(pytest.fail)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"runtime_env": {"env_vars": {}}}')
    assert runtime_env(lambda told: None)["working_dir"] == str(tmp_path)


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
