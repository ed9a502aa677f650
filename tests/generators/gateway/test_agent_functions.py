"""Agents that are functions: one import, a process an episode, nothing of which is left."""

import asyncio
import os
import socket
import venv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_engine import FakeEngine
from played import until
from played_agents import TASK, adds, late_once, play_episode

from asyncrl.core.errors import EnvironmentBroken, EnvironmentLost
from asyncrl.core.recipe.environment import AgentEnvironmentConfig
from asyncrl.core.trajectory import StopReason
from asyncrl.envs.agent.function_host import FunctionHost
from asyncrl.envs.agent.member import AgentMember
from asyncrl.envs.hosting.episode_resources import Provided
from asyncrl.envs.hosting.worker_environments import WorkerEnvironments
from asyncrl.envs.secrets import Secrets
from asyncrl.generators.gateway.agent_play import AgentPlay
from asyncrl.generators.gateway.server import Gateway

ASK = """
import json, os, random, subprocess, sys, time, urllib.request
from pathlib import Path

with open(Path(__file__).with_name("imports"), "a") as file:
    file.write("one\\n")

def ask(words, model="main"):
    body = {"model": model, "messages": [{"role": "user", "content": words}]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
"""
"""A module that needs no package, and notes each time that it is imported."""


class Stage:
    """A worker's environment and gateway, with the function ``solve`` of a module."""

    def __init__(self, folder: Path, member: AgentMember, gateway: Gateway, shared: Any) -> None:
        self.folder, self._member, self._gateway, self.shared = folder, member, gateway, shared
        self._episodes = 0

    async def play(self) -> AgentPlay:
        self._episodes += 1
        provided = Provided(Secrets(), self.shared, self.folder / f"episode-{self._episodes}")
        engine = FakeEngine(lambda row: "2")
        return await play_episode(self._member, provided, self._gateway, engine)


@asynccontextmanager
async def stage(protocols: Any, folder: Path, code: str, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> AsyncIterator[Stage]:
    (folder / "own_agent.py").write_text(ASK + code)
    monkeypatch.chdir(folder)
    member = AgentMember(AgentEnvironmentConfig(function="own_agent:solve", **spec), "environment")
    gateway = Gateway(protocols, FakeEngine(adds).chat)
    await gateway.start()
    try:
        async with member.share(Secrets()) as shared:
            yield Stage(folder, member, gateway, shared)
    finally:
        await gateway.close()


@pytest.mark.parametrize(
    ("code", "reward"),
    [
        ("def solve(task): return ask(task['prompt'])", 1.0),
        ("async def solve(task): return {'answer': ask(task['prompt'])}", 1.0),
        ("def solve(task): print(ask(task['prompt']))", 1.0),
        ("def solve(task): ask(task['prompt']); return 'another'", 0.0),
        ("def solve(task): sys.exit() if ask('x') else None", 0.0),
    ],
    ids=["text", "coroutine", "printed", "wrong", "exit"],
)
async def test_a_function_s_answer_is_rewarded(protocols, tmp_path: Path, monkeypatch, code: str, reward: float) -> None:
    async with stage(protocols, tmp_path, code, monkeypatch, reward="exact") as at:
        played = await at.play()
    assert (played.result.reward, len(played.trajectories), played.stop_reason) == (reward, 1, StopReason.ENVIRONMENT_DONE)


@pytest.mark.parametrize(
    ("returned", "reward"),
    [
        ("True", 1.0),
        ("numpy.bool_(True)", 1.0),
        ("numpy.float32(0.5)", 0.5),
        ("numpy.array([0.5])", 0.5),
        ("{'reward': True, 'metrics': {'right': False}}", 1.0),
        ("{'reward': numpy.float32(0.5), 'metrics': {'right': numpy.int64(0)}}", 0.5),
    ],
)
async def test_a_reward_is_a_number_of_any_library(protocols, tmp_path: Path, monkeypatch, returned: str, reward: float) -> None:
    code = f"def solve(task):\n    import numpy\n    ask('x')\n    return {returned}"
    async with stage(protocols, tmp_path, code, monkeypatch) as at:
        result = (await at.play()).result
    assert (result.reward, set(result.metrics.values()) <= {0.0}) == (reward, True)
    assert type(result.reward) is float


async def test_many_episodes_at_once_share_an_import_and_nothing_else(protocols, tmp_path: Path, monkeypatch) -> None:
    code = """
count = 0
def solve(task):
    global count
    count += 1
    Path("own").write_text(os.environ["OPENAI_BASE_URL"])
    ask("x", model=f"{count} {random.random()}")
    return {"reward": 0.5 if Path("own").read_text() == os.environ["OPENAI_BASE_URL"] else 0.0, "metrics": {"count": count}}
"""
    async with stage(protocols, tmp_path, code, monkeypatch) as at:
        played = await asyncio.gather(*(at.play() for _ in range(30)))
    assert {(each.result.reward, each.metrics["count"]) for each in played} == {(0.5, 1.0)}
    assert len({each.trajectories[0].role for each in played}) == 30, "each draws numbers of its own"
    assert (tmp_path / "imports").read_text() == "one\n"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def solve(task): raise KeyError('of its own')", r"(?s)exit status 1.*in solve.*KeyError: 'of its own'"),
        ("def solve(task): sys.exit('no luck')", "exit status 1.*\n?no luck"),
        ("def solve(task): os.kill(os.getpid(), 9)", "exit status 137 without a word"),
        ("def solve(task): ask('x'); return [1]", "(?s)returned \\[1\\]; it must return an answer"),
        ("def solve(task): import numpy; ask('x'); return numpy.ones(2)", "(?s)returned array.*it must return an answer"),
        ("def solve(task): import numpy; ask('x'); return {'reward': numpy.ones(2)}", "(?s)returned array.* in its dict, which"),
        ("def solve(task): ask('x'); return {'reward': {1}}", "(?s)returned \\{1\\} in its dict, which must hold texts and"),
        ("def solve(task): ask('x'); return float('nan')", "(?s)ValueError.*not JSON compliant"),
        ("def solve(task): ask('x'); return {'points': 1}", "result file is not what it must be.*points"),
        ("def solve(task): return 1.0", "ended without having asked for a turn"),
        ("def solve(task): ask('x')", "nobody gave a reward"),
    ],
    ids=["raises", "exits", "killed", "list", "array", "array in dict", "set", "nan", "unknown key", "no turn", "no reward"],
)
async def test_what_a_function_does_wrong_is_told_by_name(
    protocols, tmp_path: Path, monkeypatch, code: str, problem: str
) -> None:
    async with stage(protocols, tmp_path, code, monkeypatch) as at:
        for _ in range(2):  # the host goes on
            with pytest.raises(EnvironmentBroken, match=problem):
                await at.play()


@pytest.mark.parametrize("hangs", [False, True], ids=["ends", "hangs"])
@pytest.mark.parametrize("how", ["", "os.kill(os.getpid(), 9)"], ids=["alive", "killed"])
async def test_nothing_of_a_function_outlives_its_episode(protocols, tmp_path: Path, monkeypatch, hangs: bool, how: str) -> None:
    mark = str(tmp_path / "mark")
    daemon = (
        f"import os, time; os.fork() and os._exit(0); os.setsid(); open({mark!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    hanging = f"Path({str(tmp_path / 'asleep')!r}).touch(); time.sleep(600)"
    code = f"""
def solve(task):
    ask("x")
    subprocess.run([sys.executable, "-c", {daemon!r}], check=True)
    while not (Path({mark!r}).exists() and Path({mark!r}).read_text()):
        time.sleep(0.01)
    {hanging if hangs else how or "return 1.0"}
"""
    async with stage(protocols, tmp_path, code, monkeypatch) as at:
        if how and not hangs:
            with pytest.raises(EnvironmentBroken, match="137"):
                await at.play()
        else:
            played = await late_once((tmp_path / "asleep").exists, at.play()) if hangs else await at.play()
            assert played.stop_reason is (StopReason.EPISODE_TIMEOUT if hangs else StopReason.ENVIRONMENT_DONE)
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "mark").read_text()), 0)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def other(task): pass", "has no function 'solve'; it has the functions ask, other"),
        ("import not_installed_here", "(?s)own_agent.py.*No module named 'not_installed_here'"),
        ("raise SystemExit(3)", "cannot be imported"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
async def test_a_function_that_there_is_not(protocols, tmp_path: Path, monkeypatch, code: str, problem: str) -> None:
    with pytest.raises(EnvironmentBroken, match=problem):
        async with stage(protocols, tmp_path, code, monkeypatch):
            pass


async def test_what_a_module_makes_too_early_is_told(protocols, tmp_path: Path, monkeypatch) -> None:
    code = """
import openai, threading
client = openai.OpenAI()
threading.Thread(target=time.sleep, args=(600,), daemon=True, name="of the module").start()
def solve(task): pass
"""
    async with stage(protocols, tmp_path, code, monkeypatch) as at:
        assert isinstance(at.shared, FunctionHost)
        threads, client = at.shared.remarks
    assert "own_agent:solve: importing it started threads (of the module)" in threads
    assert "importing it made a client of openai, which reaches no model: make it in the function" in client


async def test_an_episode_that_ends_when_nobody_waits_any_longer_takes_no_other_with_it(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        theirs.settimeout(10)
        made = FunctionHost(ours, "own_agent:solve", ())
        helpers = [asyncio.create_task(made.send()), asyncio.create_task(made.listen())]
        playing = [await made.play(tmp_path, tmp_path, {}) for _ in range(2)]
        for _ in playing:
            for descriptor in (await asyncio.to_thread(socket.recv_fds, theirs, 1 << 17, 2))[1]:
                os.close(descriptor)
        waiting = asyncio.create_task(playing[0].ended())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        for number in (1, 2):
            theirs.send(msgspec.json.encode({"ended": number, "status": 7}))
        async with asyncio.timeout(10):
            assert (await playing[1].ended()).status == 7
        for helper in helpers:
            helper.cancel()


async def test_an_interpreter_of_the_agent_s_own(protocols, tmp_path: Path, monkeypatch) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    code = "def solve(task): ask('x'); return 1.0 if sys.prefix.endswith('venv') and 'asyncrl' not in ''.join(sys.path) else 0.0"
    async with stage(protocols, tmp_path, code, monkeypatch, python=python) as at:
        assert (await at.play()).result.reward == 1.0


async def test_variables_of_the_recipe_come_before_an_episode_s_and_may_be_long(protocols, tmp_path: Path, monkeypatch) -> None:
    code = """
def solve(task):
    ask("x")
    return float(os.environ["HOME"] == "/mine" and len(os.environ["A"] + os.environ["B"]) == 200_000)
"""
    variables = {"HOME": "/mine", "A": "a" * 100_000, "B": "b" * 100_000}
    async with stage(protocols, tmp_path, code, monkeypatch, variables=variables) as at:
        assert (await at.play()).result.reward == 1.0


async def test_a_host_that_ends_loses_its_episodes_and_tells_its_worker(protocols, tmp_path: Path, monkeypatch) -> None:
    code = "def solve(task):\n    ask('x'); os.kill(os.getppid(), 9); time.sleep(600)"
    (tmp_path / "own_agent.py").write_text(ASK + code)
    monkeypatch.chdir(tmp_path)
    member = AgentMember(AgentEnvironmentConfig(function="own_agent:solve"), "environment")
    environments = WorkerEnvironments({"": member}, Secrets(), "w0")
    gateway = Gateway(protocols, FakeEngine(adds).chat)
    await gateway.start()
    await environments.start(30.0)
    try:
        provided = environments.make(TASK).provided
        with pytest.raises(EnvironmentLost, match="the process that runs own_agent:solve has ended"):
            await play_episode(member, provided, gateway, FakeEngine(lambda row: "2"))
        assert "the process that runs own_agent:solve has ended" in str(await environments.lost)
    finally:
        await environments.close(5.0)
        await gateway.close()


async def test_a_cancelled_episode_of_a_function_ends(protocols, tmp_path: Path, monkeypatch) -> None:
    mark = tmp_path / "mark"
    code = f"def solve(task):\n    ask('x'); Path({str(mark)!r}).write_text(str(os.getpid())); time.sleep(600)"
    async with stage(protocols, tmp_path, code, monkeypatch) as at:
        playing = asyncio.create_task(at.play())
        await until(lambda: mark.exists() and mark.read_text() != "")
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        with pytest.raises(ProcessLookupError):
            os.kill(int(mark.read_text()), 0)
