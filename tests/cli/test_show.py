import io
import json
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from made_episodes import PROMPT_TOKENS, row, tree, turn, write
from rich.console import Console
from rich.text import Text
from terminal import terminal

from asyncrl.cli.main import main
from asyncrl.cli.outcome import ExitCode
from asyncrl.episodes.schema import Kind, TokenFate
from asyncrl.run.views import pager
from asyncrl.run.views.pager import Place, actions_of

PAGE = Path(__file__).parents[2] / "docs" / "start" / "reading-a-run.md"
HOSTILE = "a\x1b[2J\x1b[31m</script>\u202eb\x00"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run that kept two training episodes and one of an evaluation, and of which nothing else is left."""
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "recipe.yaml").write_text("name: gone\nenvironment: {name: 'no_such_module:Gone'}\n")
    slow = turn(
        PROMPT_TOKENS,
        text=HOSTILE,
        answer="no answer",
        reward=-0.5,
        calls=[("search", 3.0, "timeout", "no answer within 3 s"), ("add", 0.1, "ok", "")],
        seconds=1.5,
    )
    bad = row(4, turns=[slow], sampled_by=1, metrics=[("tool_errors", 1.0)], stop_reason="max_turns", task_id="train-bad")
    bad["fates"] = [fate if fate == TokenFate.GIVEN else TokenFate.STALE.value for fate in bad["fates"]]
    bad["fates"][-1] = TokenFate.TRAINED.value
    write(tmp_path, [row(1, reward=1.0), bad], "train")
    write(tmp_path, [row(2, kind=Kind.EVALUATION, task_id="held-out", version=2)], "evaluation")
    return tmp_path


def test_a_page_shows_everything_in_its_place(run, capsys):
    assert main(["show", str(run), "--step", "4"]) == ExitCode.COMPLETED
    shown = capsys.readouterr().out
    expected = [
        "Episode 1 of 1 kept · training step 4",
        "train-bad of source generated, environment calculator",
        "-0.5",
        "tool_errors 1",
        "max_turns",
        "by version 1, at temperature 1; trained into 4, staleness 2 (at most 2; those too stale",
        "5.0 s (queued 0.1 s, reset 0.2 s, generating 1.5 s, environment 3.2 s)",
        "10: 6 given, 1 trained, 3 too stale",
        "mean 0.01 nats",
        "0.7",
        "0.9",
        "user: 3 + 4 = ?",
        "Turn 1  4 tokens in 1.5 s  reward -0.5 (right -0.5)",
        "-> search 3.0 s timeout: no answer within 3 s",
        "-> add 0.1 s ok",
        "Answer after 3.2 s",
    ]
    places = [shown.index(each) for each in expected]
    assert places == sorted(places)


def test_what_an_episode_holds_cannot_steer_the_terminal(run, capsys):
    assert main(["show", str(run), "--task", "train-bad"]) == ExitCode.COMPLETED
    shown = capsys.readouterr().out
    assert "a␛[2J␛[31m</script>\\u202eb␀" in shown
    assert "\x1b" not in shown


def test_json_cannot_steer_the_terminal_either(run, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # then rich takes any output for a terminal
    write(run, [row(5, prompt="\x9b31m\u202eab\x7f", task_id="eighth-bit")], "more")
    assert main(["show", str(run), "--task", "eighth-bit", "--json"]) == ExitCode.COMPLETED
    line = capsys.readouterr().out
    assert "\\u009b31m\\u202eab\\u007f" in line
    assert json.loads(line)["prompt"] == "\x9b31m\u202eab\x7f"


@pytest.mark.parametrize("sort", ["reward", "gap", "staleness", "length"])
def test_sorted_and_limited_json_has_a_line_for_each(run, capsys, sort):
    assert main(["show", str(run), "--sort", sort, "--limit", "1", "--json"]) == ExitCode.COMPLETED
    (line,) = capsys.readouterr().out.splitlines()
    row = json.loads(line)
    assert row["task_id"] == ("train-1" if sort in ("length",) else row["task_id"])
    assert len(row["token_ids"]) == len(row["fates"]) == len(row["weights"])


def test_the_lowest_reward_comes_first(run, capsys):
    assert main(["show", str(run), "--sort", "reward", "--json"]) == ExitCode.COMPLETED
    rewards = [json.loads(line)["reward"] for line in capsys.readouterr().out.splitlines()]
    assert rewards == [-0.5, 1.0]


def test_evaluations_are_chosen_by_their_version(run, capsys):
    assert main(["show", str(run), "--evaluation", "--step", "2"]) == ExitCode.COMPLETED
    shown = capsys.readouterr().out
    assert "evaluation of version 2" in shown
    assert "sampled, not trained" in shown
    assert "importance weight" not in shown


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--step", "3"], "no episodes of training step 3 are kept; there are: 1, 4"),
        (["--evaluation", "--step", "3"], "there are: 2"),
        (["--task", "nobody"], "there are: 'train-1', 'train-bad'"),
        (["--evaluation", "--sort", "gap"], "sort by reward, length or staleness"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(run, capsys, arguments, told):
    assert main(["show", str(run), *arguments]) == ExitCode.REFUSED
    assert told in capsys.readouterr().err


def test_no_run_and_nothing_kept_are_told_apart(run, tmp_path, capsys):
    assert main(["show", str(tmp_path / "nowhere")]) == ExitCode.REFUSED
    assert "run folder" in capsys.readouterr().err
    for file in (run / "trajectories").iterdir():
        file.unlink()
    assert main(["show", str(run)]) == ExitCode.REFUSED
    assert "tracking.trajectories" in capsys.readouterr().err


def test_a_damaged_file_is_a_failure_that_names_it(run, capsys):
    (run / "trajectories" / "broken.parquet").write_bytes(b"no parquet")
    assert main(["show", str(run)]) == ExitCode.FAILED
    assert "broken.parquet" in capsys.readouterr().err


def test_neither_engines_nor_torch_are_imported(run):
    script = f"""
import sys
from asyncrl.cli.main import main
main(["show", {str(run)!r}])
print(sorted({{"torch", "ray", "vllm", "transformers", "megatron", "mlflow"}} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_the_commands_in_the_docs_are_understood(run, capsys):
    commands = re.findall(r"^\$ asyncrl (show [^#|\n]*)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) >= 6
    for command in commands:
        arguments = [str(run) if word == "RUN" else word for word in shlex.split(command)]
        code = main(arguments)  # what argparse does not understand ends with SystemExit
        assert code == ExitCode.COMPLETED or "there are:" in capsys.readouterr().err, command


def test_a_limit_hides_no_episode_from_the_count(run, capsys):
    assert main(["show", str(run), "--sort", "reward", "--limit", "1"]) == ExitCode.COMPLETED
    assert capsys.readouterr().out.count("Episode 1 of 2 kept") == 1


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_keys_turn_the_pages_of_a_terminal(run, columns):
    with terminal(["-m", "asyncrl.cli.main", "show", str(run)], columns, lines=30) as screen:
        shown = screen.wait_for("1 of 2  n next")
        assert shown[0].startswith("Episode 1 of 2 kept · training step 1 ─")
        lines = [line.strip() for line in shown]
        prompt = lines.index("Prompt")  # each part in a line of its own
        assert lines[prompt + 1] == "user: 3 + 4 = ?"
        assert any(line.startswith("Turn 1  4 tokens in 0.5 s") for line in lines)
        assert "-> add 200 ms ok" in lines or "-> add 0.2 s ok" in lines
        assert shown[-1] == "1 of 2  n next  p previous  up/down/space scroll  q quit"
        screen.press("n")
        assert screen.wait_for("2 of 2  n next")[0].startswith("Episode 2 of 2 kept · training step 4 ─")
        screen.press("p")
        screen.wait_for("1 of 2  n next")
        screen.press("q")
        assert screen.wait() == ExitCode.COMPLETED


def test_a_page_longer_than_the_terminal_is_scrolled_by_lines(run):
    with terminal(["-m", "asyncrl.cli.main", "show", str(run)], columns=100, lines=12) as screen:
        before = screen.wait_for("1 of 2  n next")
        screen.press("j")
        after = screen.wait_for(lambda lines: lines[0] != before[0] and "1 of 2  n next" in lines[-1])
        assert after[:10] == before[1:11]
        screen.press("q")
        assert screen.wait() == ExitCode.COMPLETED


@pytest.mark.parametrize(
    ("keys", "actions"),
    [
        (b"n", ["next"]),
        (b"\x1b[C", ["next"]),
        (b"nnp", ["next", "next", "previous"]),
        (b"\x1b[99~", []),
        (b"x", []),
        (b"", ["quit"]),
    ],
)
def test_keys_that_came_at_once_are_all_heard(keys, actions):
    assert actions_of(keys) == actions


def test_a_place_stays_within_the_pages():
    place = Place(2)
    for action in ("previous", "next", "next"):
        place.move(action, lines=10, height=4)
    assert (place.page, place.top) == (1, 0)
    for action, top in [("page down", 3), ("page down", 6), ("down", 6), ("up", 5), ("next", 5), ("page up", 2), ("page up", 0)]:
        place.move(action, lines=10, height=4)
        assert place.top == top, action
    place.move("down", lines=3, height=4)
    assert place.top == 0


def test_the_folder_of_an_evaluation_leads_to_its_models(run, tmp_path_factory, capsys):
    above = tmp_path_factory.mktemp("evaluation")
    for number, task in enumerate(("held-out-a", "held-out-b"), 1):
        model = above / f"{number}-tiny"
        model.mkdir()
        (model / "recipe.yaml").write_text("name: gone\n")
        write(model, [row(2, kind=Kind.EVALUATION, task_id=task, version=2)], "evaluation")
        if number == 1:
            assert main(["show", str(above)]) == ExitCode.COMPLETED
            assert "held-out-a" in capsys.readouterr().out
    assert main(["show", str(above)]) == ExitCode.REFUSED
    told = capsys.readouterr().err.replace("\n", "")
    assert all(str(above / name) in told for name in ("1-tiny", "2-tiny"))


def test_an_episode_of_several_trajectories_has_a_page_for_each_with_the_tree(tmp_path, capsys, monkeypatch):
    """They may lie in several files, each written by the rank that trained them."""
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "recipe.yaml").write_text("name: gone\nenvironment: {name: 'no_such_module:Gone'}\n")
    first, second, third = tree()
    write(tmp_path, [third, first, row(7, task_id="alone", group_id=99)], "train-000007-0")
    write(tmp_path, [second], "train-000007-1")
    assert main(["show", str(tmp_path), "--task", "of-three"]) == ExitCode.COMPLETED
    shown = capsys.readouterr().out
    lines = [
        "0 solver: 10 tokens",
        "  1 critic: 17 tokens, the first 6 those of 0; begun because of other role; not trained",
        "  2 solver: 24 tokens, the first 4 those of 0; begun because of parallel",
    ]
    for number in range(3):
        assert f"Trajectory {number + 1} of 3 kept · training step 7" in shown
        assert shown.count(f"-> {lines[number]}") == 1, "each page marks its own"
    assert "reward by role" in shown
    assert "critic 0.25" in shown
    assert "; the first 6 are a copy of those of trajectory 0" in shown
    assert main(["show", str(tmp_path), "--task", "alone"]) == ExitCode.COMPLETED
    assert "Episode 1 of 1 kept" in (alone := capsys.readouterr().out)
    assert "trajectories" not in alone


def test_trajectories_are_lines_of_json_with_what_they_are(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text("name: gone\n")
    write(tmp_path, tree())
    assert main(["show", str(tmp_path), "--json"]) == ExitCode.COMPLETED
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["part"], line["role"], line["parent"], line["shared"], line["why"]) for line in lines] == [
        (0, "solver", None, 0, "first"),
        (1, "critic", 0, 6, "other_role"),
        (2, "solver", 0, 4, "parallel"),
    ]
    assert {line["role_rewards"]["critic"] for line in lines} == {0.25}


def test_a_page_is_laid_out_once_however_often_it_is_scrolled(monkeypatch):
    class Page:
        def __init__(self):
            self.laid_out = 0

        def __rich_console__(self, *_):
            self.laid_out += 1
            yield Text("line\n" * 1000)

    @contextmanager
    def keys():
        yield lambda: next(pressed)

    page, pressed = Page(), iter([b"j", b"j", b" ", b"q"])
    monkeypatch.setattr(pager, "_single_keys", keys)
    pager.show_pages(Console(file=io.StringIO(), force_terminal=True), 1, lambda number: page)
    assert page.laid_out == 1
