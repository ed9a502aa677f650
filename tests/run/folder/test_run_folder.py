import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.launch import cause
from asyncrl.run.recipe.compose import compose


def test_runs_that_start_together_never_share_a_folder(tmp_path):
    recipe = compose("quickstart", [f"run_dir={tmp_path}/new/runs", "name=mine"])
    with ThreadPoolExecutor(8) as threads:
        folders = list(threads.map(lambda _: RunFolder.create(recipe), range(16)))
    paths = {folder.path for folder in folders}
    assert len(paths) == 16
    assert all(path.name.startswith("mine-2") and path.is_dir() for path in paths)


def test_the_folder_holds_the_resolved_recipe_and_room_for_logs(tmp_path):
    recipe = compose("quickstart", [f"run_dir={tmp_path}", "learner.lr=1e-5"])
    folder = RunFolder.create(recipe)
    assert folder.logs.is_dir()
    assert folder.path.is_absolute()
    assert compose(str(folder.recipe)) == recipe


def test_a_relative_run_dir_gives_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(compose("quickstart"))
    assert folder.model.is_absolute()
    assert folder.path.parent == tmp_path / "runs"


def test_a_run_dir_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    recipe = msgspec.structs.replace(compose("quickstart"), run_dir=str(tmp_path / "file" / "runs"))
    with pytest.raises(RecipeError, match="cannot make a run folder") as caught:
        RunFolder.create(recipe)
    assert caught.value.place == "run_dir"


def test_one_process_at_a_time_drives_a_run(tmp_path):
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    code = f"""
import sys, time
from pathlib import Path
from asyncrl.run.folder.run_folder import RunFolder
with RunFolder(Path({str(folder.path)!r})).driven():
    print("driving", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "driving\n"
        with pytest.raises(RecipeError, match=f"process {other.pid} is still running"), folder.driven():
            pass
        with pytest.raises(RecipeError, match=f"process {other.pid} is still running"):
            folder.check_not_driven()
        assert folder.is_driven
        other.kill()
        other.wait()
        assert not folder.is_driven
        folder.check_not_driven()
        # The kernel lets go of a killed driver's lock, and the next one knows whose files it left.
        with folder.driven():
            assert folder.run_id_before == f"{folder.path.name}-{other.pid}"
            assert folder.run_id != folder.run_id_before


def test_those_who_look_whether_a_run_is_driven_keep_nobody_from_driving_it(tmp_path):
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    with folder.driven():
        pass
    looking = os.open(folder.lock, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(0.1, os.close, [looking]).start()
    with folder.driven():
        assert folder.is_driven


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        (lambda path: path.rename(path.with_name("moved")), "while its run went on; put it back, then resume"),
        (lambda path: shutil.rmtree(path), "while its run went on; put it back, then resume"),
        (
            lambda path: (path.rename(path.with_name("moved")), path.mkdir()),
            "put it back, in the place of what is there now, then",
        ),
    ],
    ids=["moved", "removed", "made anew"],
)
def test_a_folder_that_goes_while_its_run_lives_is_told_by_whoever_drives_it(tmp_path, happens, told):
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    folder.check_there()
    with folder.driven():
        folder.check_there()
        assert cause(folder, "the buffer failed") == "the buffer failed"
        happens(folder.path)
        with pytest.raises(ComponentFailed, match=f"{folder.path} was moved or removed .*{told}"):
            folder.check_there()
        assert "was moved or removed" in cause(folder, "the buffer failed")
    folder.check_there()


def test_a_lock_that_may_only_be_read_tells_whether_the_run_is_driven(tmp_path, monkeypatch):
    """Root may write everywhere, so that the system's refusal is made here."""
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    opened = os.open

    def read_only(path, flags, *mode):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, *mode)

    with folder.driven():
        monkeypatch.setattr(os, "open", read_only)
        assert folder.is_driven
    assert not folder.is_driven


def test_every_resume_is_counted_by_whoever_did_it(tmp_path):
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    assert folder.resumes == 0
    for resumes in (1, 2, 3):
        code = (
            f"import asyncrl.run.folder.run_folder as f, pathlib; f.RunFolder(pathlib.Path({str(folder.path)!r})).count_resume()"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
        assert folder.resumes == resumes


@pytest.mark.parametrize("garbage", [b"\xff\xfe\x00garbage", b"garbage", b"-1", b"12 34", b"\x00" * 32, "²".encode()])
def test_a_damaged_lock_names_no_process_and_locks_all_the_same(tmp_path, garbage):
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    (folder.path / "driver.lock").write_bytes(garbage)
    with folder.driven():
        assert folder.run_id_before is None
        (folder.path / "driver.lock").write_bytes(garbage)
        with pytest.raises(RecipeError, match="another process is still running"), RunFolder(folder.path).driven():
            pass
    with folder.driven():
        pass
    with folder.driven():
        assert folder.run_id_before == folder.run_id


def test_a_lock_that_the_system_refuses_is_named(tmp_path):
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    (folder.path / "driver.lock").mkdir()
    with pytest.raises(RecipeError, match=r"driver\.lock': Is a directory; make the folder writable"), folder.driven():
        pass


def test_a_folder_that_cannot_be_looked_into_is_named(tmp_path):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for path in (tmp_path / "circle", tmp_path / ("long" * 100)):
        with pytest.raises(RecipeError, match=f"cannot look into '{path}'"):
            RunFolder.find(path)


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"is not a run folder: it has no recipe\.yaml"):
        RunFolder.find(tmp_path)


@pytest.mark.parametrize("given", ["NAME", "runs/NAME/logs", "runs/NAME/recipe.yaml", "runs/NAME/checkpoints/version-000001"])
def test_a_name_alone_and_what_lies_in_a_run_lead_to_the_run(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    name = RunFolder.create(compose("quickstart")).path.name
    with pytest.raises(RecipeError) as refused:
        RunFolder.find(Path(given.replace("NAME", name)))
    assert refused.value.remedy == f"did you mean 'runs/{name}'?"


def test_what_mlflow_keeps_beside_runs_is_left_out_by_the_pattern_that_is_told(tmp_path, monkeypatch):
    """``runs/*`` of a shell names it, too."""
    monkeypatch.chdir(tmp_path)
    runs = [RunFolder.create(compose("quickstart")).path.name for _ in range(2)]
    for beside in ("mlflow.db", "mlflow-artifacts"):
        Path("runs", beside).mkdir()
        with pytest.raises(RecipeError, match=r"leave out what MLflow keeps beside runs: runs/\S+ names runs alone") as refused:
            RunFolder.find(Path("runs", beside))
        pattern = refused.value.remedy.split()[-4]
        assert sorted(path.name for path in tmp_path.glob(pattern)) == sorted(runs)


def test_half_of_a_run_folder_is_none(tmp_path, monkeypatch):
    def full(self, *arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RecipeError, match=r"cannot make a run folder in .*: No space left on device"):
        RunFolder.create(compose("quickstart", [f"run_dir={tmp_path / 'runs'}"]))
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_run_without_its_recipe_is_named(tmp_path):
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    folder.recipe.unlink()
    with pytest.raises(RecipeError, match=r"is not a run folder: it has no recipe\.yaml; name a folder that"):
        RunFolder.find(folder.path)
    assert RunFolder.below(folder.path) == []


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"../elsewhere"])
def test_the_id_of_the_run_in_mlflow_is_checked_where_it_is_read(tmp_path, content):
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]))
    folder.tracked_as.write_bytes(content)
    with pytest.raises(RecipeError, match=rf"{folder.tracked_as} cannot be read: .*; put it back from a copy, or move it away"):
        folder.read_tracked_as()
