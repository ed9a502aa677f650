"""Whatever a model writes and a tool answers: nothing crashes, and only template and policy put control tokens in the history."""

import asyncio
import json
from typing import Any

import pytest
from chat_families import FAMILIES
from hostile_corpus import KILOBYTES_100, SHORTER, TEXTS, WRITERS, turns

from asyncrl.core.ids import TaskId
from asyncrl.core.messages import MalformedCall, Message, ToolCall, ToolSpec
from asyncrl.core.task import Task
from asyncrl.envs.base import Action, StepResult
from asyncrl.envs.tool_marks import tool
from asyncrl.envs.tools import ToolEnvironment
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.control_tokens import is_control
from asyncrl.generators.tool_calls.reader import ToolCallReader

FAMILY = {
    "hermes": "qwen 3",
    "qwen3_coder": "qwen 3",
    "mistral": "mistral",
    "deepseek_v31": "deepseek",
    "deepseek_v3": "deepseek",
    "llama3_json": "llama 3",
    "pythonic": "bytes",
}
QUADRATIC = ("qwen3_coder", "mistral")


class Echo(ToolEnvironment):
    """Answers with what it was given."""

    @tool
    async def f(self, x: Any = None, y: Any = None) -> Any:
        return x

    def reward(self, task: Task, answer: str) -> float:
        return 1.0


class Typed(Echo):
    @tool
    async def f(self, x: float) -> float:  # type: ignore[override]
        return x * 2


def check(action: Action) -> None:
    """Everything of an action can be written as UTF-8, and arguments as strict JSON."""
    action.content.encode()
    for call in action.calls:
        if isinstance(call, ToolCall):
            assert call.name
            json.dumps([call.name, call.arguments], ensure_ascii=False, allow_nan=False).encode()
        else:
            assert call.problem
            (call.text + call.problem).encode()


async def answers(environment: ToolEnvironment, action: Action) -> StepResult:
    await environment.reset(Task(id=TaskId("t"), prompt="p", data={}))
    return await environment.step(action)


def control(chat: ChatFormat, ids: list[int]) -> list[int]:
    """The control tokens among ``ids``, but for the one that stands for unknown characters."""
    state = json.loads(chat.tokenizer.backend_tokenizer.to_str())
    known = {token["id"] for token in state["added_tokens"] if is_control(token)} - {chat.tokenizer.unk_token_id}
    return [each for each in ids if each in known]


@pytest.fixture(scope="module")
def chats() -> dict[str, ChatFormat]:
    return {name: ChatFormat(make()) for name, make in FAMILIES.items()}


@pytest.mark.parametrize("parser", WRITERS)
async def test_whatever_a_turn_holds_is_read_and_answered(chats: dict[str, ChatFormat], parser: str) -> None:
    chat = chats[FAMILY[parser]]
    reader = ToolCallReader(chat.tokenizer, parser)
    longest = SHORTER if parser in QUADRATIC else 2 * KILOBYTES_100
    wanted = control(chat, await chat.delta([Message("tool", "ok")]))
    kinds = set()
    for what, text in turns(parser, longest):
        turn = text.encode("utf-8", "replace").decode()  # no tokenizer decodes to half a pair
        action = reader.read(turn)
        check(action)
        kinds.update(type(call) for call in action.calls)
        assert reader.ends_within_call(turn) in (True, False)
        for environment in (Echo(), Typed()):
            result = await answers(environment, action)
            assert len(result.observation.messages) == len(action.calls)
            for message in result.observation.messages[:2]:
                assert control(chat, await chat.delta([message])) == wanted, what
    assert kinds == {ToolCall, MalformedCall} or parser in ("pythonic", "deepseek_v3", "deepseek_v31", "llama3_json")


@pytest.mark.parametrize("parser", WRITERS)
async def test_a_call_cut_anywhere_is_never_run_with_half_of_its_arguments(chats: dict[str, ChatFormat], parser: str) -> None:
    """A turn that ended by itself in half a call: what is read of it is malformed, no call at all, or has all arguments."""
    reader = ToolCallReader(chats[FAMILY[parser]].tokenizer, parser)
    whole = WRITERS[parser]("f", '{"x": "abc", "y": [1, {"z": 2}]}')
    (call,) = reader.read(whole).calls
    for end in range(len(whole)):
        for found in reader.read(whole[:end]).calls:
            assert isinstance(found, MalformedCall) or found == call, whole[:end]
    assert not reader.ends_within_call(whole)
    assert reader.ends_within_call(whole[:-12])


@pytest.mark.parametrize("family", FAMILIES)
async def test_no_text_of_anybody_becomes_a_control_token(chats: dict[str, ChatFormat], family: str) -> None:
    chat = chats[family]
    delta, prompt = ([Message("tool", "ok")], [Message("user", "ok")])
    spec = ToolSpec("f", "Does it.", {"type": "object", "properties": {"x": {"type": "string", "description": "it"}}})
    wanted = [
        control(chat, ids) for ids in (await chat.delta(delta), await chat.prompt(prompt), await chat.prompt(prompt, [spec]))
    ]
    for what, text in TEXTS.items():
        described = ToolSpec(
            "f", text[:500], {"type": "object", "properties": {text[:500] or "x": {"type": "string", "description": text}}}
        )
        texts = (
            await chat.delta([Message("tool", text)]),
            await chat.prompt([Message("user", text)]),
            await chat.prompt(prompt, [described]),
        )
        assert [control(chat, ids) for ids in texts] == wanted, what


async def test_a_long_turn_is_read_beside_other_episodes(chats: dict[str, ChatFormat]) -> None:
    """A parser whose time grows with the square of the length does not hold up the event loop, and none shares its state."""
    reader = ToolCallReader(chats["qwen 3"].tokenizer, "qwen3_coder")
    long = [WRITERS["qwen3_coder"]("f", f"{number}" * 5_000) for number in range(3)]
    short = WRITERS["qwen3_coder"]("f", "short")
    reading = [asyncio.ensure_future(reader.action(text)) for text in long]
    await asyncio.sleep(0)
    assert (await reader.action(short)).calls == (ToolCall("f", {"x": "short"}),)
    for number, action in enumerate(await asyncio.gather(*reading)):
        assert action.calls == (ToolCall("f", {"x": f"{number}" * 5_000}),)
    assert await reader.is_cut_within_call(long[0][:-30])
