"""`asyncrl agent replay`: agents against the traffic that was kept of them, changed and unchanged."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from made_episodes import row, write
from played_agents import ASKS, OPENAI_AGENT, PLAIN_AGENT, play

from asyncrl.cli.main import main
from asyncrl.episodes.schema import Kind

HANGS = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
open(os.path.join(os.path.dirname(sys.argv[0]), "child"), "w").write(str(child.pid))
time.sleep(600)
"""
IN_ITS_FOLDER = (
    ASKS
    + """
answers = [ask("I am in " + os.getcwd(), temperature=0.5), ask("begin", n=2), ask("x", "embeddings")]
print([answer.get("choices", answer.get("error", {}).get("message")) for answer in answers])
"""
)
AT_ONCE = (
    ASKS
    + """
asking = [threading.Thread(target=ask, args=[text]) for text in sys.argv[1:]]
for each in asking: each.start()
for each in asking: each.join()
ask("last")
"""
)


def kept(protocols: Any, tmp_path: Path, code: str, **more: Any) -> Path:
    """Have an agent play, and keep its episode as that of a run."""
    (tmp_path / "recipe.yaml").write_text("name: gone\n")
    played = asyncio.run(play(protocols, tmp_path, code, keep_traffic=True, reward="exact", **more))
    assert played.traffic
    others = [row(1), row(2, traffic=b"an older one", task_id="sum"), row(4, kind=Kind.EVALUATION, task_id="held-out")]
    write(tmp_path, [*others, row(3, group_id=17, sample_index=2, task_id="sum", traffic=played.traffic)])
    return tmp_path


@pytest.fixture(scope="module")
def plain_run(protocols, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has kept an episode of :data:`PLAIN_AGENT`. Replays add to its folder and change nothing there."""
    return kept(protocols, tmp_path_factory.mktemp("run"), PLAIN_AGENT)


def replayed(run: Path, code: str, capfd: Any, *arguments: str, episode: str = "17/2") -> tuple[int, str]:
    (run / "again.py").write_text(code)
    capfd.readouterr()
    status = main(["agent", "replay", str(run), episode, "--", "python", str(run / "again.py"), *arguments])
    told = capfd.readouterr()
    return status, told.out + told.err


def test_an_agent_that_is_as_it_was_asks_the_same(protocols, tmp_path: Path, capfd) -> None:
    run = kept(protocols, tmp_path, OPENAI_AGENT)
    for episode in ("17/2", "sum"):
        status, told = replayed(run, OPENAI_AGENT, capfd, episode=episode)
        assert status == 0
        assert "replaying group 17, sample 2, task sum" in told
        assert "2 requests of 2 answered as they were; the agent ended with exit status 0" in told
        assert "\n2\n" in f"\n{told}", "it prints what it printed"


def test_an_agent_that_hangs_is_killed_at_the_recipe_s_deadline(protocols, tmp_path: Path, capfd) -> None:
    asks = ASKS + "ask('hello')\n"
    run = kept(protocols, tmp_path, asks, episode_timeout_s=10.0)
    status, told = replayed(run, asks + HANGS, capfd)
    assert status == 1
    assert "1 request of 1 answered as they were; then the agent neither ended nor asked for more" in told
    assert "was killed at environment.episode_timeout_s = 10 s of the run" in told
    with pytest.raises(ProcessLookupError):
        os.kill(int((run / "child").read_text()), 0)


@pytest.mark.parametrize(
    ("was", "now", "difference"),
    [
        (
            '"content": "2"',
            '"content": "two"',
            "1 request of 2 answered as they were; the next one differs. "
            "POST v1/chat/completions: messages[2].content: '2' was there before, 'two' came back",
        ),
        ('"description": "Adds."', '"description": "Sums."', "tools[0].function.description: 'Adds.' was there before"),
        ('"messages"]\n', '"messages"] + [{"role": "user", "content": "!"}]\n', "messages has 2 items, and had 1; the first"),
        ("tools=[tool]", "tools=[tool], stop=['x']", "stop is new: ['x']"),
        ("break", "messages.append({'role': 'user', 'content': 'more'}); continue", "after this no request was kept"),
        ("while True", "ask('x', 'embeddings')\nwhile True", "request 1 was POST v1/chat/completions"),
        ("tools=[tool]", "tools=[tool], temperature=0.1", None),
        ("while True", "raise SystemExit(3)\nwhile True", "0 requests of 2 answered as they were; then the agent ended"),
    ],
    ids=["an answer", "a tool", "a message", "a parameter", "a request more", "another path", "what counts not", "none"],
)  # fmt: skip
def test_the_first_request_that_differs_is_told(plain_run: Path, capfd, was: str, now: str, difference) -> None:
    assert was in PLAIN_AGENT
    status, told = replayed(plain_run, PLAIN_AGENT.replace(was, now), capfd)
    assert status == (0 if difference is None else 1)
    assert difference is None or difference in told


def test_errors_and_the_working_directory_are_as_they_were(protocols, tmp_path: Path, capfd) -> None:
    run = kept(protocols, tmp_path, IN_ITS_FOLDER)
    status, told = replayed(run, IN_ITS_FOLDER, capfd)
    assert (status, "3 requests of 3 answered" in told) == (0, True)
    assert "n is not supported" in told
    assert "the gateway has no POST" in told
    status, told = replayed(run, IN_ITS_FOLDER.replace("os.getcwd()", "'/nowhere'"), capfd)
    assert status == 1
    assert "messages[0].content: 'I am in " in told


def test_requests_at_once_may_come_in_any_order_and_others_may_not(protocols, tmp_path: Path, capfd) -> None:
    asked: list[str] = []

    def answers(row: str) -> str:
        """Hold back what is asked until all of it is under way."""
        asked.append(row)
        if len(asked) == 3:
            engine.gate.set()
        return "2"

    engine = FakeEngine(answers)
    engine.gate.clear()
    run = kept(protocols, tmp_path, AT_ONCE, engine=engine, arguments=["one", "two", "three"])
    assert replayed(run, AT_ONCE, capfd, "three", "one", "two")[0] == 0
    status, told = replayed(run, ASKS + "ask('last')", capfd)
    assert status == 1
    assert "it was request 4, and comes before request 1 (POST v1/chat/completions)" in told


@pytest.mark.parametrize(
    ("episode", "problem"),
    [
        ("10/0", "the traffic of episode '10/0' was not kept; set environment.keep_traffic=true"),
        ("99/0", "no episode '99/0' is kept in"),
        ("nothing", "traffic is kept of 20/0, 17/2"),
        ("20/0", "the kept traffic of an episode is damaged"),
    ],
)
def test_episodes_without_traffic_are_refused(plain_run: Path, capfd, episode: str, problem: str) -> None:
    status, told = replayed(plain_run, PLAIN_AGENT, capfd, episode=episode)
    assert status != 0
    assert problem in told


def test_a_command_that_there_is_not(plain_run: Path, capsys) -> None:
    assert main(["agent", "replay", str(plain_run), "sum", "--", "no-such-agent", "--flag"]) == 2
    assert "there is no program 'no-such-agent' here" in capsys.readouterr().err


def test_traffic_is_kept_only_if_the_recipe_says_so(protocols, tmp_path: Path) -> None:
    assert asyncio.run(play(protocols, tmp_path, PLAIN_AGENT, reward="exact")).traffic == b""
