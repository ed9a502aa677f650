"""Completion as a shell makes it: an interactive bash in a terminal, and zsh's own reading of the script."""

import shutil
import subprocess

import pytest
from terminal import terminal

from asyncrl.cli import completion
from asyncrl.cli.main import main

TAB = "\t"


def script_for(shell: str, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("asyncrl lau", "$ asyncrl launch"),
        ("asyncrl launch qu", "$ asyncrl launch quickstart"),
        ("asyncrl launch quickstart learner.warm", "$ asyncrl launch quickstart learner.warmup_steps=|"),
        ("asyncrl launch my/re", "$ asyncrl launch my/recipe.yaml"),
        ("asyncrl env check my/re", "$ asyncrl env check my/recipe.yaml"),
        ("asyncrl show my --sort gap --ev", "$ asyncrl show my --sort gap --evaluation"),
        ("asyncrl report my/run-1", "$ asyncrl report my/run-17"),
        ("asyncrl stop quick", "$ asyncrl stop runs/quick-17"),
    ],
)
def test_an_interactive_bash_completes_commands_recipes_keys_and_runs(tmp_path, capsys, typed, completed):
    (tmp_path / "completion").write_text(script_for("bash", capsys))
    (tmp_path / "my" / "run-17").mkdir(parents=True)
    (tmp_path / "my" / "recipe.yaml").touch()
    (tmp_path / "runs" / "quick-17").mkdir(parents=True)
    (tmp_path / "runs" / "quick-17" / "recipe.yaml").touch()
    (tmp_path / "my" / "reading.md").touch()
    begin = f"import os; os.chdir({str(tmp_path)!r}); os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])"
    with terminal(["-c", begin], columns=100, environment={"PS1": "$ "}) as screen:
        screen.wait_for(lambda lines: "$" in lines)
        screen.press("source completion\n")
        screen.wait_for(lambda lines: lines.count("$") == 1 and "$ source completion" in lines)
        screen.press(f"{typed}{TAB}|")
        # A mark shows where the cursor went: right behind a key's "=", else behind a space or the end of a folder's name.
        ends = {completed} if completed.endswith("|") else {f"{completed} |", f"{completed}/|", f"{completed}|"}
        screen.wait_for(lambda lines: any(line in ends for line in lines))
        screen.press("\x15exit\n")  # Ctrl-U empties the line; Ctrl-C might, a little later, take with it what is typed behind it
        screen.wait()


def test_a_script_is_made_again_only_when_what_it_follows_from_has_changed(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    made = script_for("fish", capsys)
    (kept,) = (tmp_path / "cache" / "completion").iterdir()
    kept.write_text("kept")
    assert script_for("fish", capsys) == "kept"
    for folder in completion._MADE_FROM:
        (tmp_path / "package" / folder / "below").mkdir(parents=True)
    (tmp_path / "package" / "cli" / "below" / "new.py").touch()
    monkeypatch.setattr(completion, "PACKAGE", tmp_path / "package")
    assert script_for("fish", capsys) == made
    (again,) = (tmp_path / "cache" / "completion").iterdir()
    assert again != kept
    monkeypatch.setenv("ASYNCRL_CACHE", "/dev/null/nowhere")
    assert script_for("fish", capsys) == made


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh here")
def test_zsh_reads_its_script(tmp_path, capsys):
    file = tmp_path / "_asyncrl"
    file.write_text(script_for("zsh", capsys))
    subprocess.run(["zsh", "-f", "-n", str(file)], check=True, timeout=60)


def test_the_script_of_zsh_knows_commands_recipes_and_keys(capsys):
    script = script_for("zsh", capsys)
    for word in ("launch", "--resume", "quickstart", "learner.lr="):
        assert word in script


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish here")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("asyncrl lau", "launch"),
        ("asyncrl launch qu", "quickstart"),
        ("asyncrl launch quickstart learner.warm", "learner.warmup_steps="),
        ("asyncrl env ch", "check"),
        ("asyncrl show runs/quick-17 --sort ga", "gap"),
        ("asyncrl attach runs/q", "runs/quick-17"),
    ],
)
def test_fish_completes_commands_recipes_keys_and_runs(tmp_path, capsys, typed, completed):
    (tmp_path / "asyncrl.fish").write_text(script_for("fish", capsys))
    (tmp_path / "runs" / "quick-17").mkdir(parents=True)
    (tmp_path / "runs" / "quick-17" / "recipe.yaml").touch()
    ask = ["fish", "--no-config", "-c", f"source asyncrl.fish; complete -C '{typed}'"]
    done = subprocess.run(ask, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[0].split("\t")[0] == completed


def test_the_script_of_fish_knows_every_command_and_its_options(capsys):
    lines = script_for("fish", capsys).splitlines()
    assert any(line.startswith("complete -c asyncrl -n '__asyncrl_commands env' -a serve -d 'Serve an") for line in lines)
    assert any("'__asyncrl_at launch' -l resume -r -a '(__asyncrl_runs)'" in line for line in lines)
