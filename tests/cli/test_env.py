"""``asyncrl env``: exit codes, and what is shown."""

import json
import os
import socket
import subprocess
import sys
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
        "from asyncrl.envs.builtin.calculator import Calculator\n\n\n"
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


def test_the_usage_names_one_environment_and_then_its_changes(capsys):
    with pytest.raises(SystemExit):
        main(["env", "check", "--help"])
    assert "ENVIRONMENT [KEY=VALUE ...]\n" in capsys.readouterr().out
    assert main(["env", "check", "calculator", "--json", "found.json", "environment.options.max_operation=1"]) == 2
    assert "max_operation" in capsys.readouterr().err, "what comes after a flag is read, too"


def test_what_cannot_be_done_is_refused(capsys):
    assert main(["env", "init", "2fast"]) == 2
    assert main(["env", "check", "nowhere:Class"]) == 2
    assert main(["env", "eval", "calculator", "--model", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_tasks_of_files_that_the_lessons_do_not_need_are_told_apart_from_those_that_they_do(capsys, tmp_path: Path):
    (tmp_path / "picky.py").write_text(
        "from asyncrl.envs.builtin.calculator import Calculator\n\n\n"
        "class Picky(Calculator):\n"
        "    def __init__(self, level: int = 1) -> None:\n        super().__init__()\n\n"
        "    @classmethod\n    def make_tasks(cls, split, count, seed):\n        return super().make_tasks(split, count, seed)\n"
    )
    for name, number in (("train", 3), ("held-out", 5)):
        lines = [json.dumps({"prompt": f"{each}+1", "answer": each + 1}) for each in range(number, number + 2)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    tasks = {"kind": "files", "train": [{"path": "train.jsonl"}], "evaluation": [{"path": "held-out.jsonl"}]}
    settings = {
        "name": "r",
        "steps": 1,
        "model": {"path": "tiny"},
        "environment": {"name": "picky:Picky", "options": {"level": 2}},
    }
    (tmp_path / "picky.yaml").write_text(json.dumps(settings | {"tasks": tasks}))
    assert main(["env", "check", "picky.yaml"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "its lessons teach the tiny model on tasks of make_tasks, also where those of the run are files" in shown
    assert "unexpected keyword argument 'level'" in shown
    assert main(["launch", "picky.yaml", "--dry-run"]) == 2
    assert "unexpected keyword argument 'level'" in capsys.readouterr().err
    assert main(["env", "eval", "picky.yaml", "--model", "tiny", "-n", "1"]) == 2
    assert "unexpected keyword argument 'level'" in capsys.readouterr().err, "it was not refused for -n"


def test_a_port_that_another_program_has_is_told_with_a_remedy():
    serve = [sys.executable, "-c", "import sys; from asyncrl.cli.main import main; sys.exit(main(sys.argv[1:]))", "env", "serve"]
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        variables = os.environ | {"ASYNCRL_ENV_TOKEN": "x"}
        done = subprocess.run([*serve, "calculator", "--port", port], env=variables, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2
    assert f"another program listens at port {port} of 127.0.0.1; end it, or choose another port" in done.stderr
