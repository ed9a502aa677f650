"""Finds the stop strings of a request in what is being sampled, token by token."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class StopStrings:
    """Looks for stop strings in one turn.

    Args:
        strings: at least one.
        skip_special: whether special tokens have no text.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", strings: Sequence[str], *, skip_special: bool) -> None:
        from tokenizers.decoders import DecodeStream

        self._strings = [each for each in strings if each]
        self._tokenizer = tokenizer.backend_tokenizer
        self._decoding = DecodeStream(skip_special_tokens=skip_special)
        self._tail = ""
        self._longest = max(map(len, self._strings), default=0)

    def stop_at(self, token: int) -> bool:
        """Whether the text of the turn has a stop string once ``token`` is in it."""
        new = self._decoding.step(self._tokenizer, token) or ""
        seen = self._tail + new
        self._tail = seen[-self._longest :]
        return any(each in seen for each in self._strings)

    def cut(self, text: str) -> tuple[str, str | None]:
        """Return ``text`` up to the first stop string, and that string; None if there is none."""
        found = [(text.find(each), each) for each in self._strings if each in text]
        if not found:
            return text, None
        place, string = min(found)
        return text[:place], string
