"""Programs in the sandbox play episodes: they reach the gateway, and nothing of them is left."""

import asyncio
import os
import tempfile
import venv
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from openai import AsyncOpenAI
from played import GATEWAY_LIMITS, until
from played_agents import ASKS, OPENAI_AGENT, PLAIN_AGENT, late_once, play

from asyncrl.core.errors import ComponentFailed, EnvironmentBroken, RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.recipe.environment import AgentEnvironmentConfig, AgentSandboxConfig
from asyncrl.core.task import Task
from asyncrl.core.trajectory import StopReason
from asyncrl.envs.agent.environment import read_result
from asyncrl.envs.agent.member import AgentMember
from asyncrl.envs.agent.sandboxed_command import named_files
from asyncrl.envs.sandbox.backends.bubblewrap import Bubblewrap
from asyncrl.envs.sandbox.backends.sandlock import Sandlock
from asyncrl.generators.gateway.server import Gateway

HERE = [name for name, backend in (("bubblewrap", Bubblewrap()), ("sandlock", Sandlock())) if not backend.missing()]
in_each = pytest.mark.parametrize("backend", HERE)
NODE_AGENT = """
const task = JSON.parse(require("fs").readFileSync(process.env.ASYNCRL_TASK));
const body = {model: "main", messages: task.messages};
fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {method: "POST", body: JSON.stringify(body)})
  .then((answer) => answer.json())
  .then((answer) => {
    const child = require("child_process").execFileSync("echo", ["said " + answer.choices[0].message.content]);
    require("fs").writeFileSync(process.env.ASYNCRL_RESULT, JSON.stringify({answer: child.toString()}));
  });
"""
HANGS = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); open('began', 'w'); time.sleep(600)"])
while not os.path.exists("began"): time.sleep(0.01)
{OPENAI_AGENT}
open("played", "w").close()
time.sleep(600)
"""


def confined(backend: str, **more: Any) -> dict[str, Any]:
    return {"reward": "exact", "sandbox": AgentSandboxConfig(backend=backend, **more)}  # type: ignore[arg-type]


def left_below(folder: Path) -> list[str]:
    """The processes whose current folder is below ``folder``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd").startswith(str(folder)):
                found.append((process / "cmdline").read_text())
        except OSError:  # it has ended
            continue
    return found


@in_each
async def test_an_agent_of_openai_s_library_plays_in_the_sandbox(protocols, tmp_path: Path, backend: str) -> None:
    played = await play(protocols, tmp_path, OPENAI_AGENT, **confined(backend))
    (trajectory,) = played.trajectories
    assert (played.result.reward, played.stop_reason, len(trajectory.turns)) == (1.0, StopReason.ENVIRONMENT_DONE, 2)
    assert left_below(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/usr/bin/node"), reason="there is no node")
@in_each
async def test_a_program_of_node_plays_in_the_sandbox(protocols, tmp_path: Path, backend: str) -> None:
    (tmp_path / "agent.js").write_text(NODE_AGENT)
    spec = confined(backend) | {"program": ("/usr/bin/node", str(tmp_path / "agent.js"))}
    played = await play(protocols, tmp_path, "", **spec)
    assert played.result.answer is not None
    assert played.result.answer.startswith("said ")


@in_each
async def test_a_command_may_name_a_program_below_a_link_of_the_system(protocols, tmp_path: Path, backend: str) -> None:
    played = await play(protocols, tmp_path, PLAIN_AGENT, arguments=("/bin/sh",), **confined(backend))
    assert (played.result.reward, len(played.trajectories[0].turns)) == (1.0, 2)


@in_each
async def test_a_sandboxed_agent_is_killed_at_the_deadline_with_all_that_it_started(
    protocols, tmp_path: Path, backend: str
) -> None:
    has_played = (tmp_path / "episode" / "work" / "played").exists
    played = await late_once(has_played, play(protocols, tmp_path, HANGS, **confined(backend)))
    assert (played.stop_reason, len(played.trajectories[0].turns)) == (StopReason.EPISODE_TIMEOUT, 2)
    assert left_below(tmp_path) == []


@in_each
async def test_a_sandboxed_episode_that_is_cancelled_ends_its_agent(protocols, tmp_path: Path, backend: str) -> None:
    playing = asyncio.create_task(play(protocols, tmp_path, HANGS, **confined(backend)))
    await until((tmp_path / "episode" / "work" / "began").exists)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert left_below(tmp_path) == []


@in_each
async def test_an_agent_plays_in_a_folder_that_is_named_by_a_link(protocols, tmp_path: Path, backend: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    played = await play(protocols, tmp_path / "link", PLAIN_AGENT, **confined(backend))
    assert played.result.reward == 1.0


WAITS_FOR_ALL_CHILDREN = """
import os, time
try:
    while True: os.wait()
except ChildProcessError: pass
ends = time.monotonic() + 1.0
while time.monotonic() < ends: pass  # the processes are looked at meanwhile
"""


@in_each
async def test_what_forwards_is_no_process_of_the_agent_s(protocols, tmp_path: Path, backend: str) -> None:
    played = await play(protocols, tmp_path, PLAIN_AGENT + WAITS_FOR_ALL_CHILDREN, **confined(backend, processes=1))
    assert (played.result.reward, played.stop_reason) == (1.0, StopReason.ENVIRONMENT_DONE)


@in_each
async def test_rewards_of_roles_that_the_model_may_have_written_do_not_count(protocols, tmp_path: Path, backend: str) -> None:
    forges = "\njson.dump({'answer': '3', 'reward': 1.0, 'rewards': {'main': 1e5}}, open(os.environ['ASYNCRL_RESULT'], 'w'))\n"
    played = await play(protocols, tmp_path, PLAIN_AGENT + forges, **confined(backend))
    assert (played.result.reward, played.result.rewards) == (0.0, {})


@in_each
async def test_a_question_that_is_the_name_of_a_file_does_not_show_it(protocols, tmp_path: Path, backend: str) -> None:
    (tmp_path / "secret").write_text("s3cret")
    reads = ASKS + "\nask('x')\ntry: print(open(sys.argv[1]).read())\nexcept OSError: print('hidden')\n"
    task = Task(id=TaskId("file"), prompt=str(tmp_path / "secret"), data={"answer": "hidden"})
    played = await play(protocols, tmp_path, reads, task=task, arguments=("{prompt}",), **confined(backend))
    assert played.result.reward == 1.0


@in_each
@pytest.mark.parametrize("first_line", ["#!{python}", "#! /usr/bin/env {python}"], ids=["whole path", "env"])
async def test_a_script_of_a_virtual_environment_plays_with_its_python(
    protocols, tmp_path: Path, backend: str, first_line: str
) -> None:
    venv.create(home := tmp_path / "venv", symlinks=True)
    script = home / "bin" / "agent"
    script.write_text(f"{first_line.format(python=home / 'bin' / 'python3')}\n{PLAIN_AGENT}")
    script.chmod(0o755)
    played = await play(protocols, tmp_path, "", **confined(backend) | {"program": (str(script), "plays")})
    assert (played.result.reward, len(played.trajectories[0].turns)) == (1.0, 2)


def test_a_python_in_the_folder_for_programs_of_a_home_does_not_show_the_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python3").symlink_to("/usr/bin/env")
    python = str(home / "bin" / "python3")
    assert home not in set(named_files([python, "-c", ""], {}))
    assert home / "lib" in set(named_files([python, "-c", ""], {}))
    (home / "pyvenv.cfg").touch()
    assert home in set(named_files([python, "-c", ""], {})), "it is a virtual environment"


FILLS = "\nwith open('large', 'wb') as file:\n    for _ in range(64):\n        file.write(bytes(2**20))\n"
MAPS = "\nmuch = bytearray(2**29)\nfor place in range(0, len(much), 4096):\n    much[place] = 1\nimport time; time.sleep(600)\n"


@pytest.mark.parametrize(
    ("more", "limit", "problem"),
    [
        (FILLS, {"folder_mb": 16}, "File too large"),
        (MAPS, {"memory_mb": 300}, "the sandbox: .stopped: it used more than 300 MiB of memory"),
        ("\nimport missing_module\n", {}, "No module named 'missing_module'"),
    ],
    ids=["disk", "memory", "raises"],
)
@in_each
async def test_an_agent_that_crosses_a_limit_fails_and_says_which(
    protocols, tmp_path: Path, backend: str, more: str, limit: dict[str, Any], problem: str
) -> None:
    with pytest.raises(EnvironmentBroken, match=problem):
        await play(protocols, tmp_path, OPENAI_AGENT + more, **confined(backend, **limit))


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_result_that_is_no_ordinary_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    (tmp_path / "secret").write_text('{"reward": 1.0}')
    result = tmp_path / "result.json"
    match kind:
        case "link":
            result.symlink_to(tmp_path / "secret")
        case "pipe":
            os.mkfifo(result)
        case "folder":
            result.mkdir()
    open_before = os.listdir("/proc/self/fd")
    with pytest.raises(EnvironmentBroken, match="the agent's result file cannot be read"):
        read_result(result)
    assert os.listdir("/proc/self/fd") == open_before


@pytest.mark.parametrize(
    "content", [b'{"answer": "\xff"}', b'{"metrics": {"\xff": 1.0}}', b'{"answer": "\\ud800"}', b"[" * 100_000, b""]
)
def test_a_result_that_is_no_text_or_no_json_says_what_it_must_be(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(EnvironmentBroken, match="result file is not what it must be"):
        read_result(tmp_path / "result.json")


@pytest.mark.parametrize(
    "readable", ["/", "//", "/proc/self", "relative", "/no/such/folder", "/" + "x" * 300, tempfile.gettempdir()]
)
def test_what_a_sandbox_must_not_show_is_refused_before_anything_starts(readable: str) -> None:
    sandbox = AgentSandboxConfig(backend="auto", readable=(readable,))
    member = AgentMember(AgentEnvironmentConfig(command=("python",), sandbox=sandbox), "environment")
    with pytest.raises(RecipeError) as raised:
        member.check(dict(os.environ))
    assert raised.value.place == "environment.sandbox.readable"


async def test_a_machine_without_a_sandbox_refuses_the_recipe(monkeypatch: pytest.MonkeyPatch, protocols, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RecipeError, match=r"bwrap is not installed.*take `sandbox` out of the recipe") as raised:
        await play(protocols, tmp_path, OPENAI_AGENT, **confined("bubblewrap"))
    assert raised.value.place == "environment.sandbox.backend"


async def test_the_gateway_listens_at_a_socket_in_a_file_too(protocols) -> None:
    engine = FakeEngine(lambda row: "hello")
    gateway = Gateway(protocols, engine.chat)
    await gateway.start(for_sandboxes=True)
    try:
        async with gateway.playing(GATEWAY_LIMITS, engine) as played:
            through = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=gateway.socket))
            async with AsyncOpenAI(base_url=played.openai_url, api_key="none", http_client=through) as client:
                said = await client.chat.completions.create(model="main", messages=[{"role": "user", "content": "hi"}])
            assert said.choices[0].message.content == "hello"
        socket = Path(gateway.socket)
        assert socket.parent.stat().st_mode & 0o077 == 0, "others of this machine cannot connect"
    finally:
        await gateway.close()
    assert not socket.parent.exists()


async def test_a_folder_with_too_long_a_name_for_a_socket_is_told(protocols, tmp_path: Path, monkeypatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    gateway = Gateway(protocols, FakeEngine(lambda row: "hello").chat)
    try:
        with pytest.raises(ComponentFailed, match="set TMPDIR to a folder of yours with a shorter name"):
            await gateway.start(for_sandboxes=True)
    finally:
        await gateway.close()
