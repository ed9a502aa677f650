"""Warms up a model with a large vocabulary as one with few entries, and gives it the others afterwards.

Lessons use a hundred entries of a vocabulary of a hundred thousand. Those that they do not use are alike to the model, so a few
of them stand for all: in the softmax, each counts as many times as there are entries for it. What always holds: with the whole
vocabulary, the model's probabilities are those that it was trained to have.
"""

from collections.abc import Sequence

import msgspec
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.learners.tiny.conversations import Example

LARGE = 8192
"""Entries of a vocabulary from which on few stand for many."""
STAND_INS = 512
"""How many entries stand for all that no lesson uses."""


class FewEntries:
    """A vocabulary with the entries that some rows use, and some that stand for all others.

    Args:
        whole: the configuration of the model with all entries.
        rows: all that the model is trained and measured on.
    """

    def __init__(self, whole: Qwen3Config, rows: Sequence[Example]) -> None:
        self._whole = whole
        self._used = sorted({token_id for row in rows for token_id in row.token_ids})
        self._place = {token_id: place for place, token_id in enumerate(self._used)}
        entries = len(self._used) + STAND_INS
        self.config = Qwen3Config(**{**whole.to_dict(), "vocab_size": entries, "eos_token_id": None, "pad_token_id": None})
        self.weights = torch.ones(entries)
        self.weights[len(self._used) :] = (whole.vocab_size - len(self._used)) / STAND_INS

    def shortened(self, row: Example) -> Example:
        """Return ``row`` in this vocabulary."""
        return msgspec.structs.replace(row, token_ids=tuple(self._place[token_id] for token_id in row.token_ids))

    def whole_model(self, model: Qwen3ForCausalLM) -> Qwen3ForCausalLM:
        """Return ``model`` with all entries: each that no lesson uses is one of those that stand for it."""
        whole = Qwen3ForCausalLM(self._whole)
        weights = model.state_dict()
        few = weights["model.embed_tokens.weight"]
        stands = len(self._used) + torch.arange(self._whole.vocab_size) % STAND_INS
        stands[self._used] = torch.arange(len(self._used))
        weights |= dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), few[stands])
        whole.load_state_dict(weights)
        return whole
