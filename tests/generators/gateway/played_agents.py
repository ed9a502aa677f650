"""Has agents play episodes on a fake engine, as a worker does."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
from fake_engine import FakeEngine
from played import CALL, LIMITS, until

from asyncrl.core.ids import TaskId
from asyncrl.core.recipe.environment import AgentEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs.agent.member import AgentMember
from asyncrl.envs.hosting.episode_resources import Provided
from asyncrl.envs.hosting.hosted import make_hosted
from asyncrl.envs.secrets import Secrets
from asyncrl.generators.gateway.agent_play import AgentPlay, play_agent
from asyncrl.generators.gateway.server import Gateway

TASK = Task(id=TaskId("sum"), prompt="What is 1+1?", data={"answer": "2", "hint": "small"})

OPENAI_AGENT = """
import json, os
from openai import OpenAI
task, client = json.load(open(os.environ["ASYNCRL_TASK"])), OpenAI()
tool = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
messages = task["messages"]
while True:
    message = client.chat.completions.create(model="main", messages=messages, tools=[tool]).choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "2"} for call in message.tool_calls]
print(message.content)
"""

ASKS = """
import json, os, sys, threading, urllib.error, urllib.request

def ask(messages, path="chat/completions", **more):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    body = {"model": "main", "messages": messages, **more}
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)
"""
PLAIN_AGENT = (
    ASKS
    + """
tool = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
messages = json.load(open(os.environ["ASYNCRL_TASK"]))["messages"]
while True:
    message = ask(messages, tools=[tool])["choices"][0]["message"]
    messages.append({key: value for key, value in message.items() if value is not None})
    if not message.get("tool_calls"):
        break
    messages += [{"role": "tool", "tool_call_id": call["id"], "content": "2"} for call in message["tool_calls"]]
print(message["content"])
"""
)
"""Does what :data:`OPENAI_AGENT` does without its library, whose import takes a second: for what is not about the library."""

DAEMON = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); time.sleep(600)"], start_new_session=True)
open(os.environ["MARK"], "w").write(f"{os.getpid()} {child.pid}")
"""


def adds(row: str) -> str:
    return "2" if "<tool_response>" in row else CALL


async def play(
    protocols: Any, tmp_path: Path, code: str, engine: FakeEngine | None = None, task: Task = TASK, **spec: Any
) -> AgentPlay:
    """Have a program play one episode in a folder of its own."""
    (tmp_path / "agent.py").write_text(code)
    engine = engine or FakeEngine(adds)
    limits = msgspec.structs.replace(LIMITS, **spec.pop("limits", {}))
    command = spec.pop("program", ("python", str(tmp_path / "agent.py"), *spec.pop("arguments", ())))
    config = AgentEnvironmentConfig(command=command, **spec)
    member = AgentMember(config, "environment")
    secrets = Secrets(dict.fromkeys(config.secrets, "s3cret value"))
    gateway = Gateway(protocols, engine.chat)
    async with member.share(secrets) as shared:
        provided = Provided(secrets, shared=shared, workspace=tmp_path / "episode")
        await gateway.start(for_sandboxes=bool(config.sandbox))
        try:
            return await play_episode(member, provided, gateway, engine, task, limits)
        finally:
            await gateway.close()


async def play_episode(
    member: AgentMember, provided: Provided, gateway: Gateway, engine: FakeEngine, task: Task = TASK, limits: Any = LIMITS
) -> AgentPlay:
    """Have an agent play one episode."""
    environment = make_hosted(lambda _: member.make(provided), task)
    try:
        await environment.reset()
        return await play_agent(environment, gateway, engine, limits)
    finally:
        await environment.close(5.0)


async def late_once(begun: Callable[[], bool], playing: Coroutine[Any, Any, AgentPlay]) -> AgentPlay:
    """Have an episode miss its deadline as soon as ``begun``, however slow the machine is: the event loop's clock leaps there."""
    loop, episode = asyncio.get_running_loop(), asyncio.ensure_future(playing)
    await until(lambda: begun() or episode.done())
    time = loop.time
    loop.time = lambda: time() + LIMITS.episode_timeout_s  # type: ignore[method-assign]
    return await episode
