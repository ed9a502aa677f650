"""A person, or a file, is the model; and what a person types is read as a turn."""

import io
import json
import random
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from terminal import terminal

from asyncrl.authoring import env_play
from asyncrl.authoring.calls import hostile_calls, made_call, read_turn
from asyncrl.authoring.subject import compose_for_author, subject_named
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.errors import RecipeError
from asyncrl.core.messages import MalformedCall, ToolCall, ToolSpec
from asyncrl.envs import ToolEnvironment, tool
from asyncrl.envs.builtin.calculator import Calculator

TOOLS = [each.spec for each in Calculator.tools.values()]


def play(turns: env_play.Turns, *overrides: str) -> tuple[float | None, str]:
    subject = subject_named(compose_for_author("calculator", overrides), None)
    task = env_play.find_task(subject, "train", "2")
    console = Console(file=io.StringIO(), width=200)
    reward = env_play.play(subject, task, turns, console)
    return reward, console.file.getvalue()


def typed(*lines: str) -> env_play.Turns:
    left = list(lines)

    def ask(prompt: str) -> str:
        if not left:
            raise EOFError
        return left.pop(0)

    return env_play.turns_of_terminal(ask)


def test_calls_are_answered_and_the_answer_is_rewarded(tmp_path: Path):
    reward, shown = play(typed('calculator("2*3")', '{"name": "calculator", "arguments": {"expression": "1+1"}}', "no idea"))
    assert reward == 0.0
    assert "tool: 6" in shown
    assert "tool: 2" in shown
    assert "end: done after 3 turns\n  reward of all turns: 0 (tool_calls 2, tool_errors 0, malformed_calls 0)" in shown
    script = tmp_path / "turns.txt"
    script.write_text('calculator("2*3") \\\ncalculator("4*5")\nmul(2, 3)\n42\n')
    reward, shown = play(env_play.turns_of_file(script))
    assert shown.index("tool: 6") < shown.index("tool: 20") < shown.index("no tool 'mul'")
    assert reward == 0.0


@pytest.mark.parametrize(
    ("written", "turns"),
    [
        (b'\xef\xbb\xbfcalculator("1")\r\n42\r\n', ['calculator("1")', "42"]),
        ("one\u2028line\x0b\n\n2".encode(), ["one\u2028line\x0b", "", "2"]),
        (b"\xef\xbb\xbf", []),
    ],
)
def test_a_script_is_read_however_it_was_saved(tmp_path: Path, written: bytes, turns: list[str]):
    (script := tmp_path / "turns.txt").write_bytes(written)
    assert list(iter(env_play.turns_of_file(script), None)) == turns


def test_a_tool_is_shown_whatever_its_schema_has():
    console = Console(file=io.StringIO(), width=200)
    env_play._show_tools(
        [ToolSpec("f", "Does.", {"properties": {"x": True, "y": {"type": "string"}}, "required": ["y"]})], console
    )
    assert "f(x?: any, y: string)  Does." in console.file.getvalue()


def test_an_episode_can_be_left_and_has_its_limits():
    assert play(typed('calculator("1+1")'))[0] is None
    reward, shown = play(typed(*['calculator("1+1")'] * 3), "environment.max_turns=2")
    assert reward == 0.0
    assert "environment.max_turns = 2 reached" in shown
    reward, shown = play(typed(*['calculator("1+1")'] * 3), "+environment.max_calls=2")
    assert "environment.max_calls = 2 reached, so this turn is not run" in shown
    assert (shown.count("tool: 2"), "tool_calls 2," in shown) == (2, True)
    penalised = ("+environment.on_malformed_call=penalise", "+environment.malformed_penalty=0.25")
    reward, shown = play(typed("calculator(1+)", "nosuch(3)", "no idea"), *penalised)
    assert (reward, "malformed_penalty -0.5" in shown) == (-0.5, True)


def test_tasks_are_found_by_number_and_id():
    subject = subject_named(compose_for_author("calculator"), None)
    task = env_play.find_task(subject, "evaluation", "1")
    assert env_play.find_task(subject, "evaluation", task.id) == task
    with pytest.raises(RecipeError, match="a number below 200"):
        env_play.find_task(subject, "evaluation", "200")
    with pytest.raises(RecipeError, match="cannot be read"):
        env_play.turns_of_file(Path("nowhere.txt"))


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("14", "14", ()),
        ("(a) or (b)", "(a) or (b)", ()),
        ("calculator('1+1')", "", (ToolCall("calculator", {"expression": "1+1"}),)),
        ("think\ncalculator(expression='1+1')", "think", (ToolCall("calculator", {"expression": "1+1"}),)),
        ("search(word='a', top=3)", "", (ToolCall("search", {"word": "a", "top": 3}),)),
        ("nosuch(3)", "", (ToolCall("nosuch", {"argument 1": 3}),)),
        ('{"name": "f"}', "", (ToolCall("f", {}),)),
        ('{"a": 1}', '{"a": 1}', ()),
        ("{x", "{x", ()),
        ('{"name": "f", "arguments": {"a": "1\u20282"}}', "", (ToolCall("f", {"a": "1\u20282"}),)),
    ],
)
def test_turns_are_read_as_people_write_them(text: str, content: str, calls: tuple[ToolCall, ...]):
    action = read_turn(text, TOOLS)
    assert (action.content, action.calls) == (content, calls)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("calculator(1+)", "invalid syntax"),
        ("calculator('1'", "'(' was never closed"),
        ("calculator(one, two)", "one is no value; put a text in quotes"),
        ("calculator(expression=f(1))", "f(1) is no value; put a text in quotes"),
        ("calculator([{}: 1])", "invalid syntax"),
        ("calculator({[]: 1})", "{[]: 1} is no value; put a text in quotes"),
        ("calculator('1', '2')", "it has 2 positional arguments, and calculator has 1 parameters"),
        ("calculator(**{})", "write each argument by name"),
        ('{"name": "f", "arguments": 3}', "it needs a name and arguments, and nothing else"),
        ('{"name"', "not JSON: Expecting ':' delimiter: line 1 column 8 (char 7)"),
    ],
)
def test_a_call_that_cannot_be_read_is_malformed(text: str, problem: str):
    assert read_turn(text, TOOLS).calls == (MalformedCall(text, problem),)


class Point(msgspec.Struct):
    x: float
    y: int | None = None


class Typed(ToolEnvironment):
    @tool
    async def draw(self, points: list[Point], name: str, filled: bool = False) -> str:
        """Draw."""
        return f"{len(points)}"

    def reward(self, task: object, answer: str) -> float:
        return 0.0


def test_made_calls_fit_their_tool_and_hostile_ones_are_calls():
    spec: ToolSpec = Typed.tools["draw"].spec
    generator = random.Random(0)
    for _ in range(50):
        Typed.tools["draw"].parameters.convert(made_call(spec, generator).arguments)
    hostile = hostile_calls(spec)
    assert max(len(json.dumps(call.arguments)) for call in hostile if isinstance(call, ToolCall)) > 100_000


def asked(lines: list[str]) -> bool:
    """Whether the last line of the screen is the prompt."""
    return [line for line in lines if line][-1:] == [">"]


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_a_person_plays_in_a_terminal(columns):
    with terminal(["-m", "asyncrl.cli.main", "env", "play", "calculator"], columns) as screen:
        shown = screen.wait_for(asked)
        assert " ".join(env_play.HELP.split()) in " ".join(" ".join(shown).split())
        screen.press('calculator("2*3")\n')
        screen.wait_for(lambda lines: "tool: 6" in lines and asked(lines))
        screen.press("\x1b[A")  # the arrow brings the line back, and it can be changed
        screen.wait_for(lambda lines: lines.count('> calculator("2*3")') == 2)
        screen.press("\x1b[D\x1b[D\x7f7\n")
        screen.wait_for(lambda lines: "tool: 14" in lines and asked(lines))
        screen.press("\x04")
        assert screen.wait() == ExitCode.FAILED


def test_an_environment_that_a_program_plays_is_refused(tmp_path: Path) -> None:
    settings = {
        "name": "agent",
        "steps": 1,
        "model": {"path": "tiny"},
        "environment": {"kind": "agent", "command": ["python"]},
        "tasks": {"kind": "files", "train": [{"path": "a.jsonl"}], "evaluation": [{"path": "b.jsonl"}]},
    }
    (tmp_path / "agent.yaml").write_bytes(msgspec.json.encode(settings))
    recipe = compose_for_author(str(tmp_path / "agent.yaml"))
    with pytest.raises(RecipeError, match="neither a person nor a script can play them") as refused:
        subject_named(recipe, None)
    assert refused.value.place == "environment"
