"""Gives control tokens private names, so that only the chat template can write them, and no other text.

A tokenizer finds its control tokens in any text, whoever wrote it: a tool output that contains ``<|im_end|>`` would end
the tool's turn. So each control token gets a private name, which begins with a character that no message may contain
(:func:`spelt_out`). The template is rewritten to use these names, and its output is encoded by a copy of the tokenizer
that knows control tokens only by these names.

What always holds: control tokens appear exactly where the template wrote them (except the token for unknown
characters); ``<|im_end|>`` in a message is encoded like any other text; text without control tokens is encoded as by
the tokenizer itself.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tokenizers import Tokenizer

RESERVED = "\ufdd0"
"""First character of every private name. Unicode reserves it for internal use by programs, so no text needs it."""
_END_OF_NAME = "\ufdd1"


def spelt_out(text: str) -> str:
    """Return ``text`` with each :data:`RESERVED` character written as an escape sequence."""
    return text.replace(RESERVED, r"\ufdd0")


class ControlTokens:
    """The control tokens of one tokenizer: those marked as special, and added tokens that look like a tag.

    Not all control tokens are marked as special: ``<tool_response>`` of Qwen and ``<|User|>`` of DeepSeek are not.
    Added tokens that do not look like a tag, such as runs of blanks or technical terms, are ordinary text. The
    tokenizer is not changed.
    """

    def __init__(self, tokenizer: "Tokenizer") -> None:
        from tokenizers import Tokenizer  # imported late: needed only to encode

        state = msgspec.json.decode(tokenizer.to_str())
        control = [token["content"] for token in state["added_tokens"] if is_control(token)]
        self._name_of = {token: f"{RESERVED}{index}{_END_OF_NAME}" for index, token in enumerate(control)}
        self._token_of = {name: token for token, name in self._name_of.items()}
        longest_first = sorted(control, key=len, reverse=True)  # as the tokenizer itself matches them
        self._tokens = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._names = re.compile(f"{RESERVED}[0-9]+{_END_OF_NAME}")
        for token in state["added_tokens"]:
            token["content"] = self._name_of.get(token["content"], token["content"])
        _rename(state["model"], self._name_of)
        state |= {"truncation": None, "padding": None, "post_processor": None}
        self._tokenizer = Tokenizer.from_str(msgspec.json.encode(state).decode())

    def named(self, template: str) -> str:
        """Return ``template``, or any other text of its author, with private names in place of control tokens."""
        return self._tokens.sub(lambda match: self._name_of[match[0]], template)

    def unnamed(self, rendered: str) -> str:
        """Return ``rendered`` with control tokens in place of private names, to be shown to users."""
        return self._names.sub(lambda match: self._token_of[match[0]], rendered)

    def spelt_in(self, text: str) -> list[str]:
        """Return the control tokens that ``text`` spells, in order. In a message they are ordinary text."""
        found: list[str] = self._tokens.findall(text)
        return found

    def first_name(self, rendered: str) -> str:
        """Return the private name that ``rendered`` begins with; empty if it begins with ordinary text."""
        match = self._names.match(rendered)
        return match[0] if match else ""

    def last_name(self, rendered: str) -> str:
        """Return the last private name in ``rendered``; empty if there is none."""
        return next(reversed(self._names.findall(rendered)), "")

    def encode(self, rendered: str) -> list[int]:
        """Return the token ids of a text rendered with private names. Several threads may call this at once."""
        # Only the methods that encode a batch let other threads run meanwhile.
        return self._tokenizer.encode_batch_fast([rendered], add_special_tokens=False)[0].ids


def is_control(token: Mapping[str, Any]) -> bool:
    """Whether an added token, as a serialised tokenizer describes it, is a control token."""
    text: str = token["content"]
    return token["special"] or (text.startswith(("<", "[")) and text.endswith((">", "]")))


def _rename(model: dict[str, Any], name_of: Mapping[str, str]) -> None:
    """Rename control tokens in a model's vocabulary, so that ordinary text cannot be merged into one of them.

    Args:
        model: the entry ``model`` of a serialised tokenizer. Its vocabulary maps tokens to ids, or (Unigram) lists
            tokens with their scores.
        name_of: private name of each control token.
    """
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {name_of.get(token, token): token_id for token, token_id in vocabulary.items()}
    else:
        model["vocab"] = [[name_of.get(token, token), score] for token, score in vocabulary]
    if isinstance(unknown := model.get("unk_token"), str):
        model["unk_token"] = name_of.get(unknown, unknown)
    if merges := model.get("merges"):
        model["merges"] = [pair for pair in merges if not {*pair, "".join(pair)} & name_of.keys()]
