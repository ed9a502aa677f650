"""Asks for turns as agents do that use the libraries of OpenAI and Anthropic, each in its own way."""

from collections.abc import Awaitable, Callable
from typing import Any

from openai import LengthFinishReasonError
from played import ANTHROPIC_TOOLS, OPENAI_TOOLS, TOOL, Clients

Ask = Callable[[Clients, list[Any]], Awaitable[Any]]
"""Asks for a turn, and adds it to a conversation with the answers to its calls; returns what the client got."""
SYSTEM = {"role": "system", "content": "Be brief."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def chat(play: Clients, messages: list[Any], **more: Any) -> Any:
    """As an agent does that uses chat completions; the first message of the conversation is the system's."""
    asked = {"model": "main", "messages": [SYSTEM, *messages], "tools": OPENAI_TOOLS, **more}
    completion = await play.openai.chat.completions.create(**asked)
    return add_chat(messages, completion.choices[0])


async def chat_stream(play: Clients, messages: list[Any], **more: Any) -> Any:
    asked = {"model": "main", "messages": [SYSTEM, *messages], "tools": OPENAI_TOOLS, **more}
    async with play.openai.chat.completions.stream(**asked) as stream:
        try:
            completion = await stream.get_final_completion()
        except LengthFinishReasonError as cut:
            completion = cut.completion
    return add_chat(messages, completion.choices[0])


def add_chat(messages: list[Any], choice: Any) -> Any:
    message = choice.message
    messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "2"} for call in message.tool_calls or ()]
    return choice


async def anthropic(play: Clients, messages: list[Any], **more: Any) -> Any:
    asked = {"max_tokens": 32_000, "messages": messages, "tools": ANTHROPIC_TOOLS, "system": "Be brief.", **more}
    return add_anthropic(messages, await play.anthropic.messages.create(model="main", **asked))


async def anthropic_stream(play: Clients, messages: list[Any], **more: Any) -> Any:
    asked = {"max_tokens": 32_000, "messages": messages, "tools": ANTHROPIC_TOOLS, "system": "Be brief.", **more}
    async with play.anthropic.messages.stream(model="main", **asked) as stream:
        return add_anthropic(messages, await stream.get_final_message())


def add_anthropic(messages: list[Any], message: Any) -> Any:
    blocks = [block.model_dump(include={"type", "text", "id", "name", "input"}) for block in message.content]
    messages.append({"role": "assistant", "content": blocks})
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "2"} for block in message.content if block.type == "tool_use"
    ]
    if results:
        messages.append({"role": "user", "content": results})
    return message


def response_of(messages: list[Any], more: dict[str, Any]) -> dict[str, Any]:
    tool = {"type": "function", **TOOL}
    most = {"max_output_tokens": more.pop("max_tokens")} if "max_tokens" in more else {}
    return {"model": "main", "input": messages, "instructions": "Be brief.", "tools": [tool], **most, **more}


async def responses(play: Clients, messages: list[Any], **more: Any) -> Any:
    return add_response(messages, await play.openai.responses.create(**response_of(messages, more)))


async def responses_stream(play: Clients, messages: list[Any], **more: Any) -> Any:
    async with play.openai.responses.stream(**response_of(messages, more)) as stream:
        return add_response(messages, await stream.get_final_response())


def add_response(messages: list[Any], response: Any) -> Any:
    messages += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
    calls = [item for item in response.output if item.type == "function_call"]
    messages += [{"type": "function_call_output", "call_id": call.call_id, "output": "2"} for call in calls]
    return response


WAYS = (chat, chat_stream, anthropic, anthropic_stream, responses, responses_stream)
"""All ways to ask."""
