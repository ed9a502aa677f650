"""Gives a response in which nothing is said a message without text, as vLLM leaves its output empty.

What always holds: the output of a response has an item. So a client that sends back what it got goes on in the turn's stream, in
this protocol as in the others. Importing this imports vLLM.
"""

from typing import Any

from openai.types.responses import (
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDoneEvent,
)
from vllm.entrypoints.openai.responses.protocol import ResponseCompletedEvent, ResponsesResponse

_TEXT = ResponseOutputText(type="output_text", text="", annotations=[])


def with_message(response: ResponsesResponse) -> ResponsesResponse:
    """Return a response with a message, if it has no output."""
    if response.output:
        return response
    return response.model_copy(update={"output": [_message(response.id.replace("resp_", "msg_", 1), "completed", [_TEXT])]})


def with_message_in_stream(events: list[Any]) -> list[Any]:
    """Return the events of a streamed response, with those of a message before the last one if it has no output."""
    last = events[-1]
    if not isinstance(last, ResponseCompletedEvent) or last.response.output:
        return events
    response, number = with_message(last.response), last.sequence_number
    (message,) = response.output
    at: Any = {"output_index": 0, "item_id": message.id, "content_index": 0}
    begun = _message(message.id, "in_progress", [])
    return [
        *events[:-1],
        ResponseOutputItemAddedEvent(type="response.output_item.added", sequence_number=number, output_index=0, item=begun),
        ResponseContentPartAddedEvent(type="response.content_part.added", sequence_number=number + 1, part=_TEXT, **at),
        ResponseTextDoneEvent(type="response.output_text.done", sequence_number=number + 2, text="", logprobs=[], **at),
        ResponseContentPartDoneEvent(type="response.content_part.done", sequence_number=number + 3, part=_TEXT, **at),
        ResponseOutputItemDoneEvent(type="response.output_item.done", sequence_number=number + 4, output_index=0, item=message),
        last.model_copy(update={"sequence_number": number + 5, "response": response}),
    ]


def _message(name: str, status: Any, content: list[Any]) -> ResponseOutputMessage:
    return ResponseOutputMessage(id=name, type="message", role="assistant", content=content, status=status)
