"""``asyncrl env``: exit codes, and what is shown."""

import json
from pathlib import Path

import pytest

from asyncrl.cli.main import main


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_check_is_shown_written_and_told_by_the_exit_code(capsys, tmp_path: Path):
    assert main(["env", "check", "calculator", "environment.options.max_operations=1", "--json", "found.json"]) == 0
    assert "calculator: in order" in capsys.readouterr().out
    (checked,) = json.loads((tmp_path / "found.json").read_text())
    assert checked["findings"] == []
    (tmp_path / "faulty_one.py").write_text(
        "from asyncrl.envs.calculator import Calculator\n\n\n"
        "class Faulty(Calculator):\n    def reward(self, task, answer):\n        return 1.0\n"
    )
    assert main(["env", "check", "faulty_one:Faulty"]) == 1
    shown = capsys.readouterr().out
    assert "faulty_one:Faulty: 1 error" in shown
    assert "error [rewards] faulty_one:Faulty: every answer" in shown


def test_each_environment_of_a_mixture_is_checked_and_one_is_played(capsys, tmp_path: Path):
    members = {name: {"name": "calculator", "options": {"max_operations": most}} for name, most in (("easy", 1), ("hard", 3))}
    settings = {"name": "r", "steps": 1, "model": {"path": "tiny"}, "environment": {"kind": "mixed", "members": members}}
    (tmp_path / "mixed.yaml").write_text(json.dumps(settings | {"tasks": {"train": 40, "evaluation": 20}}))
    assert main(["env", "check", "mixed.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "easy (calculator): in order" in shown
    assert "hard (calculator): in order" in shown
    (tmp_path / "turns").write_text("calculator('1+1')\n2\n")
    assert main(["env", "play", "mixed.yaml", "--script", "turns"]) == 2
    assert "name one of easy, hard" in capsys.readouterr().err
    assert main(["env", "play", "mixed.yaml", "--script", "turns", "--member", "hard"]) == 0
    assert "tool: 2" in capsys.readouterr().out


def test_what_cannot_be_done_is_refused(capsys):
    assert main(["env", "init", "2fast"]) == 2
    assert main(["env", "check", "nowhere:Class"]) == 2
    assert main(["env", "eval", "calculator", "--model", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
