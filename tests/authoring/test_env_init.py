"""What ``asyncrl env init`` writes works: its test passes, it has no findings, and its lessons fit."""

import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.authoring.check import check
from asyncrl.authoring.env_init import start
from asyncrl.authoring.subject import compose_for_author
from asyncrl.core.errors import RecipeError


def test_a_started_environment_passes_its_test_and_has_no_findings(tmp_path: Path, monkeypatch):
    files = start(tmp_path / "Road-signs")
    assert [file.name for file in files] == ["road_signs.py", "road_signs.yaml", "test_road_signs.py"]
    monkeypatch.chdir(tmp_path / "Road-signs")
    monkeypatch.syspath_prepend(tmp_path / "Road-signs")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_road_signs.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    (checked,) = check(compose_for_author("road_signs.yaml"), None, lambda note: None)
    assert checked.findings == ()
    assert checked.environment == "road_signs:RoadSigns"


def test_nothing_is_overwritten_and_names_must_be_modules(tmp_path: Path):
    (tmp_path / "there").mkdir()
    for name, problem in (("there", "is there already"), ("2fast", "cannot be the name"), ("class", "cannot be the name")):
        with pytest.raises(RecipeError, match=problem):
            start(tmp_path / name)
    assert [file.name for file in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize("name", ["json", "random", "test", "torch", "sys", "asyncrl", "learners", "Re", "pytest"])
def test_a_name_that_is_imported_as_something_else_is_refused(tmp_path: Path, name: str):
    with pytest.raises(RecipeError, match=f"a module named '{name.lower()}', and .* is imported by that name; choose another"):
        start(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
