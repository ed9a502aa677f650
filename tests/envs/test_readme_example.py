"""The README's environment works when pasted, and is launched by what stands below it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import yaml

README = Path(__file__).parents[2] / "README.md"
(PROGRAM,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
MODULE, LAUNCH = PROGRAM.split("\n\n\nrun = ")


def test_the_launch_is_accepted_as_pasted(tmp_path: Path):
    """What is launched is a recipe, and its environment plays."""
    call = next(each for each in ast.walk(ast.parse(LAUNCH)) if isinstance(each, ast.Call))
    assert ast.unparse(call.func) == "asyncrl.launch"
    recipe, overrides = map(ast.literal_eval, call.args)
    assert [(each.arg, ast.unparse(each.value)) for each in call.keywords] == [("environment", "Guess")]
    changed = {"defaults": [recipe, "_self_"], **overrides, "environment": {"name": "guess:Guess"}}
    (tmp_path / "guess.py").write_text(MODULE)
    (tmp_path / "guess.yaml").write_text(yaml.safe_dump(changed))
    command = [sys.executable, "-m", "asyncrl.cli.main", "launch", "guess.yaml", "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "guess:Guess" in done.stdout


def test_the_example_has_no_findings(tmp_path: Path, monkeypatch):
    from asyncrl.authoring.check import check
    from asyncrl.authoring.subject import compose_for_author

    (tmp_path / "guess_of_the_readme.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (checked,) = check(compose_for_author("guess_of_the_readme:Guess"), None, lambda note: None)
    assert checked.findings == ()


async def test_the_example_plays(tmp_path: Path, monkeypatch):
    from asyncrl.core.messages import ToolCall
    from asyncrl.core.recipe.environment import ClassEnvironmentConfig
    from asyncrl.envs.base import Action
    from asyncrl.envs.load import load_member, make_tasks

    (tmp_path / "guess.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    spec = ClassEnvironmentConfig(name="guess:Guess")
    (task, *_) = make_tasks(spec, "train", 3, seed=0)
    number = task.data["answer"]
    environment = load_member(spec).make()
    observation = await environment.reset(task)
    assert [tool.name for tool in observation.tools] == ["is_larger"]
    asked = await environment.step(Action("", (ToolCall("is_larger", {"than": number - 1}),)))
    assert (asked.observation.messages[0].content, asked.done, asked.fault) == ("true", False, None)
    answered = await environment.step(Action(str(number), ()))
    assert (answered.reward, answered.done) == (1.0, True)


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) < 120
