"""Scripts and sizes of scripted models; :mod:`asyncrl.bench.loop.scripted_model` makes the models. This module needs no torch."""

from collections.abc import Mapping, Sequence

import msgspec

PADDING, END = "<|pad|>", "<|end|>"
ASKED, RESUMED = "<|respond|>", "<|resume|>"
"""Tokens after which the model begins its first turn, and its next turn once a tool has answered."""
CALL, END_OF_CALL = "<tool_call>", "</tool_call>"
CONTROL_TOKENS = (PADDING, END, ASKED, RESUMED, "<|system|>", "<|user|>", "<|tool|>")
TAG_TOKENS = (CALL, END_OF_CALL)


class Size(msgspec.Struct, frozen=True):
    """The layout of a Qwen3 model without its vocabulary, which follows from the script.

    Attributes:
        hidden: ``hidden_size`` of the Hugging Face configuration.
        layers: ``num_hidden_layers``.
        heads, key_value_heads: ``num_attention_heads`` and ``num_key_value_heads``.
        head_dim: ``head_dim``.
        intermediate: ``intermediate_size``.
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
"""A turn is a sequence of places; a place is the tokens that may stand there, all equally likely."""


class Script(msgspec.Struct, frozen=True):
    """The turns of a model. A token stands at one place only; every turn ends with ``END``, which is not part of a script.

    Attributes:
        call: the turn that calls a tool.
        answer: the turn that calls no tool; empty if every turn calls the tool.
        again: after a tool's answer, call again with probability 1/2; otherwise the model always answers.
    """

    call: Turn
    answer: Turn = ()
    again: bool = False

    def followers(self) -> dict[str, frozenset[str]]:
        """The tokens that may follow each token, all equally likely.

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
                        raise ValueError(f"{token!r} stands at two places of the script; use different tokens")
                    followers[token] = frozenset(following)
        return followers
