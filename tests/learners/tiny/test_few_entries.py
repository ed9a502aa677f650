"""A model that is warmed up with few entries of a large vocabulary has the same probabilities with all of them."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.learners.tiny.conversations import Example, pad
from asyncrl.learners.tiny.few_entries import STAND_INS, FewEntries
from asyncrl.learners.tiny.settings import Size
from asyncrl.learners.tiny.warmup import config_of, spoken_logits

ENTRIES = 3000


class Padded:
    """What is needed of a tokenizer."""

    pad_token_id = 0

    def __len__(self) -> int:
        return ENTRIES - 10


@pytest.fixture
def whole() -> Qwen3Config:
    size = Size(hidden=32, heads=2, key_value_heads=1, head=16, feed_forward=64, entries=ENTRIES)
    return config_of(Padded(), size, (7, 2999))  # type: ignore[arg-type]


@torch.no_grad()
def test_with_all_entries_the_model_says_what_it_was_taught_to_say(whole: Qwen3Config) -> None:
    rows = [Example((5, 2999, 1200, 7), (False, True, True, True)), Example((5, 40, 7, 2999), (False, True, False, True))]
    few = FewEntries(whole, rows)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        taught = Qwen3ForCausalLM(few.config)
        taught.model.embed_tokens.weight.mul_(20)  # else all are as probable
        model = few.whole_model(taught)
    assert few.config.vocab_size == 5 + STAND_INS
    assert (model.config.vocab_size, model.config.eos_token_id, len(model.get_input_embeddings().weight)) == (
        3000,
        [7, 2999],
        3000,
    )
    assert model.lm_head.weight is model.model.embed_tokens.weight
    short, targets = spoken_logits(taught, pad([few.shortened(row) for row in rows]))
    said, wanted = spoken_logits(model, pad(rows))
    few_said = (short + few.weights.log()).log_softmax(-1).gather(1, targets[:, None])
    whole_said = said.log_softmax(-1).gather(1, wanted[:, None])
    assert few_said.min() < -1
    # The stand-ins do not all stand for the same number of entries: one more or less.
    torch.testing.assert_close(few_said, whole_said, rtol=0, atol=0.2)
