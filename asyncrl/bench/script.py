"""The scripts and sizes of scripted models; :mod:`asyncrl.bench.scripted_model` makes such a model. Needs no torch."""

from collections.abc import Mapping, Sequence

import msgspec

PADDING, END = "<|pad|>", "<|end|>"
ASKED, RESUMED = "<|respond|>", "<|resume|>"
"""Tokens after which the model speaks: at first, and once a tool has answered."""
CALL, END_OF_CALL = "<tool_call>", "</tool_call>"
CONTROL_TOKENS = (PADDING, END, ASKED, RESUMED, "<|system|>", "<|user|>", "<|tool|>")
TAG_TOKENS = (CALL, END_OF_CALL)


class Size(msgspec.Struct, frozen=True):
    """The layout of a Qwen3, tied to nothing but its vocabulary.

    Attributes:
        hidden, layers, heads, key_value_heads, head_dim, intermediate: as Hugging Face's configuration calls them.
    """

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    intermediate: int


SIZES: Mapping[str, Size] = {
    "1m": Size(hidden=128, layers=4, heads=4, key_value_heads=2, head_dim=32, intermediate=384),
    "6m": Size(hidden=256, layers=6, heads=4, key_value_heads=2, head_dim=64, intermediate=1024),
}

Turn = Sequence[Sequence[str]]
"""A turn as places, and each place as the tokens that may stand there, each as likely as the others."""


class Script(msgspec.Struct, frozen=True):
    """The turns of a model. Every token stands at one place only; all turns end with ``END``, which is not written here.

    Attributes:
        call: a turn that calls a tool.
        answer: a turn that calls none; empty if the model calls the tool for ever.
        again: after a tool's answer, whether the model calls once more with probability 1/2; it answers otherwise.
    """

    call: Turn
    answer: Turn = ()
    again: bool = False

    def followers(self) -> dict[str, frozenset[str]]:
        """The tokens that may follow each token, all as likely as the others.

        Raises:
            ValueError: a token stands at two places.
        """
        opening = frozenset(self.call[0])
        resuming = opening if not self.answer else frozenset(self.answer[0]) | (opening if self.again else frozenset())
        followers = {ASKED: opening, RESUMED: resuming}
        for turn in (self.call, self.answer):
            for place, following in zip(turn, [*turn[1:], [END]], strict=True) if turn else ():
                for token in place:
                    if token in followers:
                        raise ValueError(f"{token!r} stands at two places of the script; a token says where in it the model is")
                    followers[token] = frozenset(following)
        return followers
