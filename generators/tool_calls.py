"""Reads a sampled turn as an action, with vLLM's tool parser for the model's family.

What always holds:

* a call that the parser cannot read becomes a :class:`MalformedCall`, never an exception and never plain text without
  notice: the policy can only learn from its mistake if it is told;
* the arguments of a call are what JSON allows, with finite numbers: no ``NaN``, no ``Infinity``, no ``1e999``;
* what a reasoning parser takes for reasoning is seen neither by the tool parser nor by the environment.
"""

import json
import logging
import math
from typing import TYPE_CHECKING, Any

from asyncrl.core.messages import MalformedCall, ToolCall
from asyncrl.core.text import class_name, writable
from asyncrl.envs.base import Action
from generators.call_formats import marks_of
from generators.reasoning import Reasoning

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BEGIN = ("tool_call_start_token", "bot_token", "tool_calls_start_token", "tool_start_token", "tool_call_prefix")
_END = ("tool_call_end_token", "", "tool_calls_end_token", "tool_end_token", "")
"""Attributes under which vLLM's parsers keep the texts that begin and end a call, if their format has them."""
_CUT_PROBLEM = 300
"""The most characters that are told of an error that a parser raised: it may quote a whole turn."""


class ToolCallReader:
    """Reads turns of one model with vLLM's tool parser ``parser_name``.

    Args:
        reasoning: tells reasoning from what is said aloud; None if turns hold no reasoning.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", parser_name: str, reasoning: Reasoning | None = None) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager

        self._name = parser_name
        self._make = ToolParserManager.get_tool_parser(parser_name)
        self._tokenizer = tokenizer
        self._parser = self._make(tokenizer)
        self._reasoning = reasoning
        # Parsers read at most the tools of a request. A valid request for each turn would cost more than parsing.
        self._request = ChatCompletionRequest.model_construct(messages=[], tools=None, tool_choice="auto")
        self._begin, self._end = marks_of(parser_name)
        if not self._begin:
            found = ((self._text(begin), self._text(end)) for begin, end in zip(_BEGIN, _END, strict=True))
            self._begin, self._end = next((marks for marks in found if marks[0]), ("", ""))
        # vLLM logs a traceback for each turn that it cannot read, and a model in training writes thousands of those.
        logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
        logging.getLogger("vllm.parser").setLevel(logging.CRITICAL)

    def read(self, text: str) -> Action:
        """Read the content and the calls from the text of a turn, which comes without the token that ended the turn."""
        text = self._spoken(text)
        try:
            found = self._parser.extract_tool_calls(text, self._request)
        except Exception as error:  # noqa: BLE001 - a parser that trips over what the model wrote could not read it
            self._parser = self._make(self._tokenizer)  # it may hold half a turn
            return self._unreadable(text, f"{class_name(error)}: {error}"[:_CUT_PROBLEM])
        if found.tools_called and found.tool_calls:
            return Action(found.content or "", tuple(_decode(call.function) for call in found.tool_calls))
        if not self._begin or self._begin not in text:
            return Action(text, ())
        return self._unreadable(text)

    def ends_within_call(self, text: str) -> bool:
        """Whether a turn that a limit cut off ends in the middle of a call, as far as the format tells where calls end."""
        text = self._spoken(text)
        where = text.rfind(self._begin) if self._begin else -1
        if where < 0:
            return text.lstrip().startswith(("{", "[")) and not self._end and not _is_whole(text)
        body = text[where + len(self._begin) :]
        return self._end not in body if self._end else not _is_whole(body)

    def _spoken(self, text: str) -> str:
        return text if self._reasoning is None else self._reasoning.cut(text)

    def _text(self, attribute: str) -> str:
        value = getattr(self._parser, attribute, "") if attribute else ""
        return value if isinstance(value, str) else ""

    def _unreadable(self, text: str, problem: str = "") -> Action:
        content, mark, rest = text.partition(self._begin) if self._begin in text and self._begin else ("", "", text)
        return Action(content, (MalformedCall(writable(mark + rest), writable(problem or _problem(rest, self._name))),))


def _decode(function: Any) -> ToolCall | MalformedCall:
    text = writable(f"{function.name}({function.arguments})")
    try:
        arguments = json.loads(function.arguments, parse_constant=_refused, parse_float=_finite)
        json.dumps([function.name, arguments], ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return MalformedCall(text, f"it contains invalid Unicode: {error}")
    except (ValueError, RecursionError) as error:
        return MalformedCall(text, f"the arguments are not JSON: {error}")
    if not isinstance(arguments, dict):
        return MalformedCall(text, "the arguments are not a JSON object")
    if not isinstance(function.name, str) or not function.name:
        return MalformedCall(text, "it names no tool")
    return ToolCall(function.name, arguments)


def _refused(constant: str) -> float:
    raise ValueError(f"JSON has no number {constant}")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"the number {number[:40]} is too large")
    return value


def _is_whole(body: str) -> bool:
    """Whether ``body`` begins with a whole JSON value, but for a name before it."""
    body = body.replace("[ARGS]", "")
    start = min((place for place in (body.find("{"), body.find("[")) if place >= 0), default=-1)
    if start < 0:
        return False
    try:
        json.JSONDecoder().raw_decode(body, start)
    except (ValueError, RecursionError):
        return False
    return True


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
