"""What is said of a request that begins a trajectory although an earlier conversation was like it."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from asyncrl.authoring.agents.conversations import Beginning, Conversations
from asyncrl.core.trajectory import StartReason
from asyncrl.generators.gateway.matching import Asked
from asyncrl.generators.gateway.observer import Placed
from asyncrl.generators.gateway.protocol import Protocol

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What is 1+1?"}
CALL = {"id": "c", "function": {"name": "add", "arguments": '{"a": 1, "b": 1}'}}
SAID: dict[str, Any] = {"role": "assistant", "content": " I add.\n", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "2"}
ANSWER = {"role": "assistant", "content": "It is 2."}
MORE = {"role": "user", "content": "And now?"}
TOOLS = ({"type": "function", "function": {"name": "add", "description": "Adds."}},)


def placed(messages: Sequence[Any], why: StartReason = StartReason.HISTORY_REWRITTEN, **asked: Any) -> Placed:
    return Placed(None, Protocol.CHAT, Asked(**{"role": "main", "messages": messages, "tools": TOOLS, **asked}), why, 0, 0, {})


def told() -> Conversations:
    conversations = Conversations()
    conversations.finished(placed([SYSTEM, USER]), SAID)
    conversations.finished(placed([SYSTEM, USER, SAID, RESULT]), ANSWER)
    return conversations


def with_call(**changed: Any) -> dict[str, Any]:
    return {**SAID, "tool_calls": [{"id": "c", "function": {**CALL["function"], **changed}}]}


OPENING = [SYSTEM, USER]


@pytest.mark.parametrize(
    ("messages", "how"),
    [
        (
            [*OPENING, {**SAID, "content": "I add"}, RESULT, ANSWER, MORE],
            "message 3, the assistant's message: its text is cut off: 'I add.' was there before, 'I add' came back",
        ),
        ([*OPENING, {**SAID, "content": "I add. Well."}, RESULT], "its text is longer"),
        ([*OPENING, {**SAID, "content": ""}, RESULT], "its text is gone"),
        ([*OPENING, {**SAID, "content": "We add."}, RESULT], "it has another text"),
        (
            [*OPENING, with_call(arguments='{"a": 2}'), RESULT],
            'a call has other arguments: \'add({"a": 1, "b": 1})\' was sampled, \'add({"a": 2})\' came back',
        ),
        ([*OPENING, with_call(name="sum"), RESULT], "a call has another name"),
        ([*OPENING, {**SAID, "tool_calls": []}, RESULT], "it has fewer calls"),
        ([*OPENING, {**SAID, "tool_calls": [CALL, CALL]}, RESULT], "it has more calls"),
        ([*OPENING, RESULT, ANSWER, MORE], "message 3, the assistant's message: it is left out (' I add.\\n')"),
        (
            [*OPENING, SAID, {**RESULT, "content": "3"}, MORE],
            "message 4, the tool's message: it has another text: '2' was there before, '3' came back",
        ),
        ([*OPENING, SAID, MORE, RESULT], "message 4, the tool's message: another one comes before it ('And now?')"),
        (
            [*OPENING, {"role": "user", "content": "Summary: 2"}],
            "message 3, the assistant's message: the user's comes in its place ('Summary: 2')",
        ),
        ([*OPENING, SAID], "it ends with message 3, after which the conversation had gone on"),
    ],
)
def test_which_message_differs_and_how(messages: list[Any], how: str) -> None:
    begun = told().begun(placed(messages))
    assert begun.beginning is Beginning.REWRITTEN
    assert how in begun.how


def test_another_conversation() -> None:
    begun = told().begun(placed([SYSTEM, {"role": "user", "content": "Another"}]))
    assert (begun.beginning, begun.how) == (Beginning.CONVERSATION, "message 2 (user) is 'Another'")


def other(name: str, description: str) -> Any:
    return {"type": "function", "function": {"name": name, "description": description}}


@pytest.mark.parametrize(
    ("asked", "how"),
    [
        ({"tools": (*TOOLS, other("sub", "Subtracts."))}, "tools are new: sub"),
        ({"tools": ()}, "tools are left out: add"),
        ({"tools": (other("add", "Sums up."),)}, "tools have another description: add"),
        ({"arguments": {"enable_thinking": False}}, "arguments of the template differ: enable_thinking"),
    ],
)
def test_which_tools_differ(asked: dict[str, Any], how: str) -> None:
    begun = told().begun(placed([SYSTEM, USER, SAID, RESULT], StartReason.OTHER_TOOLS, **asked))
    assert (begun.beginning, begun.how) == (Beginning.TOOLS, how)


def test_what_is_no_change_of_a_conversation() -> None:
    again = told().begun(placed([SYSTEM, USER], StartReason.PARALLEL))
    assert (again.beginning, again.how) == (Beginning.AGAIN, "")
    sub = told().begun(placed([SYSTEM, USER], StartReason.OTHER_ROLE, role="sub"))
    assert (sub.beginning, sub.how) == (Beginning.CONVERSATION, "")


PROMPT = "/no_think What is 7+5? "


@pytest.mark.parametrize(
    ("text", "beginning", "how"),
    [
        (
            f"{PROMPT}Twelve is the ANSWER. 6?",
            Beginning.REWRITTEN,
            "its tokens differ: '... 7+5? Twelve is the answer.' was there before, '... 7+5? Twelve is the ANSWER. 6?' came back",
        ),
        (f"{PROMPT}It is twelve.", Beginning.CONVERSATION, ""),
        ("What is 6+6? ", Beginning.CONVERSATION, ""),
    ],
)
def test_which_tokens_differ(text: str, beginning: Beginning, how: str) -> None:
    conversations = Conversations()
    for said, answer in ((PROMPT, "Twelve is the answer."), ("Is 1 odd? ", "Yes.")):
        message = {"role": "user", "content": said}
        conversations.finished(placed([message]), {"content": answer})
    asked = msgspec.structs.replace(placed([{"role": "user", "content": text}]), protocol=Protocol.GENERATE)
    begun = conversations.begun(asked)
    assert (begun.beginning, begun.how) == (beginning, how)
