"""Completion as a shell makes it: an interactive bash in a terminal, and zsh's own reading of the script."""

import shutil
import subprocess

import pytest
from terminal import terminal

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
    ],
)
def test_an_interactive_bash_completes_commands_recipes_keys_and_runs(tmp_path, capsys, typed, completed):
    (tmp_path / "completion").write_text(script_for("bash", capsys))
    (tmp_path / "my" / "run-17").mkdir(parents=True)
    (tmp_path / "my" / "recipe.yaml").touch()
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


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh here")
def test_zsh_reads_its_script(tmp_path, capsys):
    file = tmp_path / "_asyncrl"
    file.write_text(script_for("zsh", capsys))
    subprocess.run(["zsh", "-f", "-n", str(file)], check=True, timeout=60)


def test_the_script_of_zsh_knows_commands_recipes_and_keys(capsys):
    script = script_for("zsh", capsys)
    for word in ("launch", "--resume", "quickstart", "learner.lr="):
        assert word in script
