"""Control tokens under private names: a chat template can write them, and no other text can.

A tokenizer finds its control tokens in any text, whoever wrote it: the output of a tool that holds ``<|im_end|>`` would end the
tool's turn. So each control token gets a name that begins with a character no message may hold (:func:`spelt_out`). The template
is rewritten to use the names, and what it renders is encoded by a copy of the tokenizer that knows control tokens by these names
only.

What always holds: control tokens, apart from one for unknown letters, stand exactly where the template wrote them;
``<|im_end|>`` in a message is encoded like any other text; text without control tokens is encoded as by the tokenizer itself.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from tokenizers import Tokenizer

RESERVED = "\ufdd0"
"""Begins every private name. Unicode sets it aside for use inside of programs, so that no text loses anything without it."""
_END_OF_NAME = "\ufdd1"


def spelt_out(text: str) -> str:
    """``text`` with each :data:`RESERVED` character written as an escape sequence."""
    return text.replace(RESERVED, r"\ufdd0")


class ControlTokens:
    """The control tokens of one tokenizer, which is not changed: those it calls special, and those written like a tag.

    Qwen does not call ``<tool_response>`` special, nor DeepSeek ``<|User|>``. Added tokens that are not written like a tag, such
    as runs of blanks or words of a trade, are ordinary text.
    """

    def __init__(self, tokenizer: "Tokenizer") -> None:
        from tokenizers import Tokenizer  # only who encodes needs it

        state = msgspec.json.decode(tokenizer.to_str())
        control = [token["content"] for token in state["added_tokens"] if _is_control(token)]
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
        """``template``, or any text of its author, with control tokens under their private names."""
        return self._tokens.sub(lambda match: self._name_of[match[0]], template)

    def unnamed(self, rendered: str) -> str:
        """``rendered`` with the tokenizer's own control tokens in place of private names, to be shown to users."""
        return self._names.sub(lambda match: self._token_of[match[0]], rendered)

    def first_name(self, rendered: str) -> str:
        """The private name that ``rendered`` begins with; empty if it begins with ordinary text."""
        match = self._names.match(rendered)
        return match[0] if match else ""

    def last_name(self, rendered: str) -> str:
        """The last private name in ``rendered``; empty if there is none."""
        return next(reversed(self._names.findall(rendered)), "")

    def encode(self, rendered: str) -> list[int]:
        """Token ids of what a template with private names rendered. Several threads may call it at once."""
        # Of the ways to encode, only those for batches let other threads run meanwhile.
        return self._tokenizer.encode_batch_fast([rendered], add_special_tokens=False)[0].ids


def _is_control(token: Mapping[str, Any]) -> bool:
    text: str = token["content"]
    return token["special"] or (text.startswith(("<", "[")) and text.endswith((">", "]")))


def _rename(model: dict[str, Any], name_of: Mapping[str, str]) -> None:
    """Rename control tokens in a model's vocabulary, so that ordinary text cannot be put together to one of them.

    Args:
        model: what a serialised tokenizer calls so; its vocabulary maps tokens to ids, or (Unigram) lists them with their scores.
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
