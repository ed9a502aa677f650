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
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from asyncrl.core.messages import MalformedCall, ToolCall, ToolSpec
from asyncrl.core.text import class_name, writable
from asyncrl.envs.base import Action
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.generators.tool_calls.blocks import blocks, shielded, unshielded
from asyncrl.generators.tool_calls.formats import JSON_PARSERS, PYTHON_PARSERS, CallFormat, format_named
from asyncrl.generators.tool_calls.json_calls import MISTRAL, Broken, JsonCall, json_calls, mistral_calls
from asyncrl.generators.tool_calls.reasoning import Reasoning
from asyncrl.generators.tool_calls.repeated import once, repeated_in_json, repeated_in_python, unpaired
from asyncrl.generators.tool_calls.schemas import without_references
from asyncrl.generators.tool_calls.several import calls_of_list, calls_of_section, on_one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Result = TypeVar("Result")

_BEGIN = ("tool_call_start_token", "bot_token", "tool_calls_start_token", "tool_start_token", "tool_call_prefix")
_END = ("tool_call_end_token", "", "tool_calls_end_token", "tool_end_token", "")
"""Attributes under which vLLM's parsers keep the texts that begin and end a call, if their format has them."""
_LONG = 4_000
"""A turn of this many characters or more is read in a thread: the time of some of vLLM's parsers grows with the square of its
length, and takes seconds for 100 KB."""
_JSON_CALL = (
    r"""^[ \t]*(?:```(?:json)?\s*)?(?:\[\s*)?\{{(?:[^{{]*["'](?:parameters|arguments)["']\s*:"""
    r"""|\s*["'](?:name|function)["']\s*:\s*["'](?:{names})["'])|<function=(?:{names})>"""
)
_PYTHON_CALL = r"\A\[\s*[A-Za-z_][\w.]*\s*\(|\A(?:{names})\s*\(|\[\s*(?:{names})\s*\("
_TOOL_SETS = 64
"""Sets of tools whose readers are kept: the episodes of an environment mostly share one."""
_CUT_PROBLEM = 300
"""The most characters that are shown of an error that a parser raised: it may quote a whole turn."""


class ToolCallReader:
    """Reads turns of one model with vLLM's tool parser ``parser_name``.

    Args:
        reasoning: tells reasoning from what is said aloud; None if turns hold no reasoning.
        tools: the tools that the model may call. Where a format writes every argument as text, their schemas say what it means.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        parser_name: str,
        reasoning: Reasoning | None = None,
        tools: Sequence[ToolSpec] = (),
    ) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionToolsParam
        from vllm.tool_parsers import ToolParserManager

        self._name = parser_name
        self._make = ToolParserManager.get_tool_parser(parser_name)
        self._tokenizer = tokenizer
        self._tools = tools
        self._described = [
            ChatCompletionToolsParam.model_validate(without_references(tool).as_template_input()) for tool in tools
        ]
        self._parser = self._make(tokenizer, self._described)
        self._reasoning = reasoning
        self._knowing: dict[bytes, ToolCallReader] = {}
        # A valid request for each turn would cost more than parsing.
        self._request = ChatCompletionRequest.model_construct(messages=[], tools=self._described or None, tool_choice="auto")
        self._format = known = format_named(parser_name)
        self._is_json = known is not None and known.json
        found = ((self._text(begin), self._text(end)) for begin, end in zip(_BEGIN, _END, strict=True))
        self._begin, self._end = (known.begin, known.end) if known else next((marks for marks in found if marks[0]), ("", ""))
        # vLLM logs a traceback for each turn that it cannot read, and a model in training writes thousands of those.
        logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
        logging.getLogger("vllm.parser").setLevel(logging.CRITICAL)

    def knowing(self, tools: Sequence[ToolSpec]) -> "ToolCallReader":
        """Return a reader of the same model's turns that knows these tools; the same one for the same tools."""
        key = msgspec.msgpack.encode(tools)
        if key not in self._knowing:
            if len(self._knowing) >= _TOOL_SETS:
                self._knowing.pop(next(iter(self._knowing)))
            reasoning = None if self._reasoning is None else self._reasoning.knowing(tools)
            self._knowing[key] = ToolCallReader(self._tokenizer, self._name, reasoning, tools)
        return self._knowing[key]

    async def action(self, text: str) -> Action:
        """Read a turn as :meth:`read` does, without holding up other episodes."""
        return await self._apart(ToolCallReader.read, text)

    async def is_cut_within_call(self, text: str) -> bool:
        """Tell what :meth:`ends_within_call` does, without holding up other episodes."""
        return await self._apart(ToolCallReader.ends_within_call, text)

    async def _apart(self, method: "Callable[[ToolCallReader, str], Result]", text: str) -> "Result":
        if len(text) < _LONG:
            return method(self, text)
        # Parsers hold the state of the turn that they read, so this one needs its own.
        return await run_in_daemon_thread(lambda: method(self._again(), text), name="reading a turn")

    def _again(self) -> "ToolCallReader":
        reasoning = None if self._reasoning is None else self._reasoning.again()
        return ToolCallReader(self._tokenizer, self._name, reasoning, self._tools)

    def read(self, text: str) -> Action:
        """Read the content and the calls from the text of a turn, which comes without the token that ended the turn."""
        text = self._spoken(text)
        try:
            return self._read_blocks(text)
        except RecursionError:  # what can be parsed may still be too deep to be written again
            return self._unreadable(text, "it is nested too deeply")

    def _read_blocks(self, text: str) -> Action:
        """Read each call by itself where the format marks each, and the turn at once where it does not."""
        if self._format is not None and self._format.each and self._format.each in text.partition(self._begin)[2]:
            return self._read_section(text, self._format)
        if self._name in PYTHON_PARSERS:
            return self._read_list(text)
        if self._format is None or not self._format.single:
            return self._read_whole(text)
        if self._begin not in text:
            whole = self._read_whole(text)
            problem = self._lost(shielded(text, self._format)) if whole.calls else ""
            return self._unreadable(text, problem) if problem else whole
        content, calls = "", list[ToolCall | MalformedCall]()
        for block in blocks(text, self._format):
            if not block.readable:
                content += block.text
                continue
            if problem := self._lost(block.text if self._is_json else block.readable):
                calls.append(MalformedCall(writable(block.text), problem))
                continue
            found = self._read_whole(block.readable).calls or self._unreadable(block.text).calls
            for call in found:
                if isinstance(call, ToolCall):
                    calls.append(ToolCall(call.name, unshielded(call.arguments)))
                else:
                    calls.append(MalformedCall(writable(block.text), call.problem))
        return Action(content, tuple(calls))

    def _lost(self, call: str) -> str:
        """Say what a parser would drop of a call without a word."""
        marks = self._format.value if self._format else None
        return repeated_in_json(call) if marks is None else unpaired(call, marks)

    def _read_section(self, text: str, format: CallFormat) -> Action:
        """Read the calls of all sections one by one."""
        calls = list[ToolCall | MalformedCall]()
        for call in calls_of_section(text, format):
            calls += self._one(call, f"{format.begin}{on_one_line(call)}{format.end}")
        if calls and self._is_half(text) and isinstance(last := calls[-1], ToolCall):
            calls[-1] = MalformedCall(writable(f"{last.name}({last.arguments})"), self._no_end)
        return Action(text.partition(format.begin)[0], tuple(calls))

    def _read_list(self, text: str) -> Action:
        """Read a list of several Python calls one by one."""
        whole = self._read_whole(text)
        before, several, after = calls_of_list(text)
        if len(several) < 2:
            problem = repeated_in_python(several[0]) if several and whole.calls else ""
            return self._unreadable(text, problem) if problem else whole
        calls = list[ToolCall | MalformedCall]()
        for call in several:
            if problem := repeated_in_python(call):
                calls.append(MalformedCall(writable(call), problem))
            else:
                calls += self._one(call, f"{before}[{call}]{after}")
        return Action(whole.content, tuple(calls)) if any(isinstance(call, ToolCall) for call in calls) else whole

    def _one(self, call: str, readable: str) -> list[ToolCall | MalformedCall]:
        """Read a single call of several, which is ``readable`` where it stands alone."""
        found = self._read_whole(readable).calls or self._unreadable(call).calls
        if any(isinstance(each, ToolCall) and self._end and self._end in each.name for each in found):
            return [*self._unreadable(call).calls]  # some parsers take all that follows for a name
        return [MalformedCall(writable(call), each.problem) if isinstance(each, MalformedCall) else each for each in found]

    def _read_whole(self, text: str) -> Action:
        """Read a text at once: by our own reader where the format is JSON without marks, else by vLLM's parser."""
        if self._begin == MISTRAL and MISTRAL in text:
            said, found_here = mistral_calls(text)
            return Action(said, tuple(map(self._decoded, found_here)))
        if self._name in JSON_PARSERS and (own := json_calls(text)):
            return Action(own[0], tuple(map(self._decoded, own[1])))
        try:
            found = self._parser.extract_tool_calls(text.strip() if self._name in PYTHON_PARSERS else text, self._request)
        except Exception as error:  # noqa: BLE001 - a parser that trips over what the model wrote could not read it
            self._parser = self._make(self._tokenizer, self._described)  # it may hold half a turn
            return self._unreadable(text, f"{class_name(error)}: {error}"[:_CUT_PROBLEM])
        if found.tools_called and found.tool_calls:
            calls = [_decode(call.function) for call in found.tool_calls]
            if self._is_half(text) and isinstance(calls[-1], ToolCall):
                calls[-1] = MalformedCall(writable(f"{calls[-1].name}({calls[-1].arguments})"), self._no_end)
            return Action(found.content or "", tuple(calls))
        marks = (self._begin, self._end, self._format.each if self._format else "")
        if any(mark and mark in text for mark in marks) or self._is_meant_as_call(text):
            return self._unreadable(text)
        return Action(text, ())

    def _decoded(self, call: JsonCall | Broken) -> ToolCall | MalformedCall:
        return self._unreadable(call.text).calls[0] if isinstance(call, Broken) else _decode(call)

    def _is_meant_as_call(self, text: str) -> bool:
        """Whether a text without marks, in which the parser found no call, is a call that went wrong, and no answer."""
        names = "|".join(re.escape(tool.name) for tool in self._tools) or "(?!)"
        if self._name in JSON_PARSERS:
            return bool(re.search(_JSON_CALL.format(names=names), text, re.MULTILINE))
        if self._name in PYTHON_PARSERS:
            return bool(re.search(_PYTHON_CALL.format(names=names), text.strip()))
        return False

    def ends_within_call(self, text: str) -> bool:
        """Whether a turn that a limit cut off ends in the middle of a call, as far as the format tells where calls end."""
        return self._is_open(self._spoken(text))

    def _is_open(self, text: str) -> bool:
        if self._begin and self._begin in text:
            body = text.rpartition(self._begin)[2]
            return self._end not in body if self._end else not _is_whole(body)
        start = text.strip()
        if self._end or not start.startswith(("{", "[")):
            return False
        return not _is_whole(start) and not (start[0] == "[" and start[-1] == "]")

    def _is_half(self, text: str) -> bool:
        """Whether a turn that the model ended holds only the beginning of its last call: some parsers read what is there."""
        if not self._begin or not self._is_open(text):
            return False
        return not (self._is_json and _is_whole(text.rpartition(self._begin)[2]))

    @property
    def _no_end(self) -> str:
        return f"the call does not end: {self._end} is missing" if self._end else "the call does not end"

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
        arguments = _loads(function.arguments)
        if isinstance(arguments, str) and arguments.lstrip().startswith("{"):  # JSON within a JSON string
            arguments = _loads(arguments)
        json.dumps([function.name, arguments], ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return MalformedCall(text, f"it contains invalid Unicode: {error}")
    except (ValueError, RecursionError) as error:
        return MalformedCall(text, f"the arguments are not JSON: {error}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return MalformedCall(text, "the arguments are not a JSON object")
    if not isinstance(function.name, str) or not function.name:
        return MalformedCall(text, "it names no tool")
    return ToolCall(function.name, arguments)


def _loads(text: str) -> Any:
    return json.loads(text, parse_constant=_refused, parse_float=_finite, object_pairs_hook=once)


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
        return repeated_in_json(start) or "it needs a name and arguments, and nothing else"
    return f"not in the format {parser_name}"
