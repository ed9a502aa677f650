"""Reads a sampled turn as an action, with vLLM's tool parser for the model's family.

A call that the parser cannot read becomes a :class:`MalformedCall`, never an exception and never plain text without
notice: the policy can only learn from its mistake if it is told.
"""

import json
import logging
from typing import TYPE_CHECKING, Any

from asyncrl.core.messages import MalformedCall, ToolCall
from asyncrl.core.text import writable
from asyncrl.envs.base import Action

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARKS = ("tool_call_start_token", "bot_token", "tool_calls_start_token", "tool_start_token", "tool_call_prefix")
"""Attributes under which vLLM's parsers keep the text that begins a call, if their format has one."""


class ToolCallReader:
    """Reads turns of one model with vLLM's tool parser ``parser_name``."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", parser_name: str) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager

        self._name = parser_name
        self._parser = ToolParserManager.get_tool_parser(parser_name)(tokenizer)
        # Parsers read at most the tools of a request. A valid request for each turn would cost more than parsing.
        self._request = ChatCompletionRequest.model_construct(messages=[], tools=None, tool_choice="auto")
        self._mark = next((mark for name in _MARKS if isinstance(mark := getattr(self._parser, name, None), str) and mark), None)
        # vLLM logs a traceback for each turn that it cannot read, and a model in training writes thousands of those.
        logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)

    def read(self, text: str) -> Action:
        """Read the content and the calls from the text of a turn, which comes without the token that ended the turn."""
        found = self._parser.extract_tool_calls(text, self._request)
        if found.tools_called and found.tool_calls:
            return Action(found.content or "", tuple(_decode(call.function) for call in found.tool_calls))
        if self._mark is None or self._mark not in text:
            return Action(text, ())
        content, mark, rest = text.partition(self._mark)
        return Action(content, (MalformedCall(mark + rest, _problem(rest, self._name)),))


def _decode(function: Any) -> ToolCall | MalformedCall:
    text = writable(f"{function.name}({function.arguments})")
    try:
        arguments = json.loads(function.arguments)
        json.dumps([function.name, arguments], ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return MalformedCall(text, f"it contains invalid Unicode: {error}")
    except (ValueError, RecursionError) as error:
        return MalformedCall(text, f"the arguments are not JSON: {error}")
    if not isinstance(arguments, dict):
        return MalformedCall(text, "the arguments are not a JSON object")
    return ToolCall(function.name, arguments)


def _problem(body: str, parser_name: str) -> str:
    """Say why a call could not be read, as far as possible without its format: most are JSON up to a closing tag."""
    start = body.lstrip()
    if start.startswith(("{", "[")):
        try:
            json.JSONDecoder().raw_decode(start)
        except (ValueError, RecursionError) as error:
            return f"not JSON: {error}"
        return "it needs a name and arguments, and nothing else"
    return f"not in the format {parser_name}"
