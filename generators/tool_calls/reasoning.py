"""Cuts a turn's reasoning from what tool parser and environment read, with vLLM's reasoning parser for the model's family.

What always holds: the tokens of a turn stay in the trajectory as they were sampled, reasoning included, and are trained; later
turns continue them. Only the text that is read as an action lacks the reasoning.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncrl.core.messages import ToolSpec
from asyncrl.generators.chat_format import ChatFormat

if TYPE_CHECKING:
    from vllm.reasoning import ReasoningParser


class Reasoning:
    """Tells reasoning from what is said aloud in the turns of one model.

    Args:
        chat: the model's chat format; the start of its turns may begin the reasoning, or end it where the model is not to reason.
        parser_name: name of the vLLM reasoning parser.
        tools: those of the prompt.

    Raises:
        RuntimeError: the model's vocabulary lacks the tokens of this parser.
    """

    def __init__(self, chat: ChatFormat, parser_name: str, tools: Sequence[ToolSpec] = ()) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.reasoning import ReasoningParserManager

        self._chat, self._name, self._tools = chat, parser_name, tools
        self._parser: ReasoningParser = ReasoningParserManager.get_reasoning_parser(parser_name)(chat.tokenizer)
        self._request = ChatCompletionRequest.model_construct(messages=[], tools=None, tool_choice="auto")
        self._begin, self._end = self._parser.reasoning_start_str, self._parser.reasoning_end_str
        start = chat.decode(chat.turn_start(tools))
        self._begun = bool(self._begin and self._begin in start)
        self._over = bool(self._end and self._end in start)
        logging.getLogger("vllm.reasoning").setLevel(logging.CRITICAL)

    def again(self) -> "Reasoning":
        """Return another one of the same kind, since a parser reads one turn at a time."""
        return Reasoning(self._chat, self._name, self._tools)

    def knowing(self, tools: Sequence[ToolSpec]) -> "Reasoning":
        """Return another one of the same kind for episodes with these tools, whose turns may begin in another way."""
        return Reasoning(self._chat, self._name, tools)

    def cut(self, text: str) -> str:
        """Return the text of a turn without its reasoning, and the line ends after it: nothing if the reasoning does not end.

        Text that neither the model nor the chat template has marked as reasoning is kept, whatever the parser makes of it: some
        take every turn without a mark for reasoning that has not ended.
        """
        marked = self._begun or any(mark and mark in text for mark in (self._begin, self._end))
        known = self._begin or self._end
        if self._over or (known and not marked):
            return text
        if self._end and self._end in text:  # some parsers take a call within the reasoning for its end
            return text.partition(self._end)[2].lstrip("\n")
        _, content = self._parser.extract_reasoning(text, self._request)
        return (content or "").lstrip("\n")
