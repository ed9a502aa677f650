"""`asyncrl agent check`: agents that behave well and badly, as users would see them."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncrl.authoring.agents.agent_check import AgentChecked
from asyncrl.cli.main import main
from asyncrl.envs.sandbox.backends.bubblewrap import Bubblewrap
from asyncrl.envs.sandbox.backends.sandlock import Sandlock

CLIENT = """
import json, os, urllib.request
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}

def ask(messages, **more):
    body = {"model": "main", "messages": messages, "tools": [TOOL], **more}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]

def results(message):
    return [{"role": "tool", "tool_call_id": call["id"], "content": "2"} for call in message.get("tool_calls") or ()]
"""
GOOD = """
def solve(task):
    messages = task["messages"]
    while True:
        messages.append(ask(messages, temperature=0.2, response_format={"type": "json_object"}))
        if not messages[-1].get("tool_calls"):
            return 1.0
        messages += results(messages[-1])
"""
TRIMS = """
def solve(task):
    messages = task["messages"]
    for _ in range(3):
        said = ask(messages)
        messages += [{**said, "content": "Aha. " + (said["content"] or "")}, *results(said)]
    return 0.0
"""
ERRS = """
def solve(task):
    try:
        ask(task["messages"], n=2)
    except OSError:
        ask(task["messages"], model="helper")
    return 0.0
"""
REWARDED_IN_THE_SANDBOX = """
solve(json.load(open(os.environ["ASYNCRL_TASK"])))
try:
    open(OUTSIDE)
except OSError:
    json.dump({"reward": 1.0}, open(os.environ["ASYNCRL_RESULT"], "w"))
"""
COUNTS = """
def solve(task):
    path = os.environ["OPENAI_BASE_URL"] + "/models"
    urllib.request.urlopen(path).close()
    try:
        urllib.request.urlopen(path.replace("/e/", "/e/other"))
    except OSError:
        ask(task["messages"])
    return {"reward": 1.0, "metrics": {"steps": 3}}
"""
FAILS = """
def solve(task):
    ask(task["messages"])
    raise ValueError("my own")
"""
LONG = """
def solve(task):
    return ask([{"role": "user", "content": "x y " * 4000}])
"""


def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, *arguments: str) -> tuple[int, AgentChecked]:
    module = f"own_{tmp_path.name}"  # this process may have found an earlier one
    (tmp_path / f"{module}.py").write_text(CLIENT + code)
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "What is 1+1?"}\n')
    (tmp_path / "held-out.jsonl").write_text('{"prompt": "What is 2+2?"}\n')
    recipe = {
        "name": "own",
        "steps": 1,
        "model": {"path": "tiny", "max_context": 1024},
        "sampling": {"max_turn_tokens": 200},
        "environment": {"kind": "agent", "function": f"{module}:solve"},
        "tasks": {"kind": "files", "train": [{"path": "tasks.jsonl"}], "evaluation": [{"path": "held-out.jsonl"}]},
    }
    (tmp_path / "own.yaml").write_text(json.dumps(recipe))
    monkeypatch.chdir(tmp_path)
    exit_code = main(["agent", "check", "own.yaml", "--episodes", "2", "--json", "found.json", *arguments])
    (one,) = msgspec.json.decode((tmp_path / "found.json").read_bytes(), type=list[AgentChecked])
    return exit_code, one


def problems(one: AgentChecked) -> list[str]:
    return [f"{each.severity} {each.check}: {each.problem}" for each in one.findings]


def test_an_agent_that_sends_back_what_it_got(tmp_path: Path, monkeypatch) -> None:
    code, one = checked(tmp_path, monkeypatch, GOOD)
    (role,) = one.roles.values()
    assert (code, one.episodes, one.rewards, problems(one)) == (0, 2, [1.0, 1.0], [])
    assert (role.requests, role.extended, role.trajectories, one.continued) == (6, 4, 2, 1.0)
    assert one.asked_in_vain == {"not enforced response_format": 6, "replaced temperature": 6}
    assert one.cost == pytest.approx(role.learner_tokens / role.sampled_tokens)


def test_an_agent_that_rewrites_its_answers(tmp_path: Path, monkeypatch, capsys) -> None:
    code, one = checked(tmp_path, monkeypatch, TRIMS)
    assert code == 0
    assert one.continued == 0.0
    first, second = problems(one)
    assert first.startswith("warning history: 2 turns began a trajectory, history rewritten: message 2, the assistant's message")
    assert "'Let me see.' was there before, 'Aha. Let me see.' came back" in first
    assert "message 4, the assistant's message: its text is longer: '' was there before, 'Aha.' came back" in second
    assert "0% of the turns that follow another one extend its trajectory" in capsys.readouterr().out


def test_an_agent_of_several_trajectories_with_credit_for_turns(tmp_path: Path, monkeypatch) -> None:
    code, one = checked(tmp_path, monkeypatch, TRIMS, "algorithm.credit.kind=turn")
    assert code == 1
    assert problems(one)[0].startswith("error credit: 2 episodes had several trajectories")


def test_an_agent_whose_requests_are_refused(tmp_path: Path, monkeypatch) -> None:
    code, one = checked(tmp_path, monkeypatch, ERRS, "environment.train=[main]")
    assert code == 1
    assert problems(one) == [
        "error roles: no trajectory is of a role that is trained; there are helper",
        "warning requests: 2 requests got 400: n is not supported: each request has one turn; send several",
    ]


def test_rewards_that_are_compared_and_that_no_episode_reports(tmp_path: Path, monkeypatch) -> None:
    weights = "algorithm.advantage={kind: gdpo, rewards: {reward: 1.0, steps: 0.5, brevity: 0.5}}"
    code, one = checked(tmp_path, monkeypatch, COUNTS, weights)
    assert code == 1
    assert problems(one) == [
        "error rewards: the episode has no metric 'brevity' to be rewarded by; its environment reports "
        "steps, turns_taken_back, unenforced_requests",
        "warning requests: 2 requests got 410: there is no such episode; it may be over",
    ]


def test_an_agent_that_fails(tmp_path: Path, monkeypatch) -> None:
    code, one = checked(tmp_path, monkeypatch, FAILS)
    assert (code, one.episodes) == (1, 0)
    (problem,) = problems(one)
    assert "ValueError: my own" in problem
    assert "host.py" not in problem, "frames of ours are left out"


def test_an_agent_whose_first_prompt_leaves_no_room(tmp_path: Path, monkeypatch) -> None:
    code, one = checked(tmp_path, monkeypatch, LONG)
    assert (code, one.episodes) == (1, 0)
    problem, request = problems(one)
    assert problem.endswith("tokens, and model.max_context is 1,024: no turn fits")
    assert request.startswith("warning requests: 2 requests got 400: This model's maximum context length is 1024 tokens")


def test_answers_of_a_file(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "turns").write_text("add(a=7)\nIt is 7.\n")
    code, one = checked(tmp_path, monkeypatch, GOOD, "--script", "turns")
    assert (code, one.roles["main"].requests, one.roles["main"].extended) == (0, 4, 2)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [(["quickstart"], "the recipe has no agent"), (["agent", "--script", "/nowhere"], "cannot be read")],
)
def test_what_cannot_be_checked_is_refused(arguments: list[str], problem: str, capsys: Any) -> None:
    assert main(["agent", "check", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_an_agent_is_checked_in_its_sandbox(tmp_path: Path, monkeypatch) -> None:
    backend = next((each for each in (Bubblewrap(), Sandlock()) if not each.missing()), None)
    if backend is None:
        pytest.skip("there is no sandbox here")
    (tmp_path / "program.py").write_text(
        f"{CLIENT}{GOOD}\nOUTSIDE = {str(tmp_path / 'tasks.jsonl')!r}\n{REWARDED_IN_THE_SANDBOX}"
    )
    command = f"environment.command=[python,{tmp_path}/program.py]"
    code, one = checked(
        tmp_path, monkeypatch, GOOD, "environment.function=''", command, f"+environment.sandbox={{backend: {backend.name}}}"
    )
    assert (code, one.episodes, one.rewards, problems(one)) == (0, 2, [1.0, 1.0], [])
