"""The tiny model's tokenizer: byte-level BPE fitted to the conversations it will see, so that episodes are short.

The JSON of tool specifications and calls is the same in every episode, and becomes a few long tokens. Every digit, and
every operator next to a digit, stays a token of its own; so do the pieces that lessons name, or they are split into the
same tokens everywhere. Any other text can still be encoded, as bytes. Fitting is deterministic.
"""

import re
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from asyncrl.learners.tiny.chat_template import CHAT_TEMPLATE

END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"
CONTROL_TOKENS = (PADDING, "<|im_start|>", END_OF_TURN)
"""Special tokens, which decoding can leave out."""
TAG_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Single tokens that are part of the text: a tool parser must find them after decoding."""

ASSISTANT_HEADER = "<|im_start|>assistant\n"

_HEADER_END = r"^assistant\n"
"""Ends the header of the assistant's turn, whose first word must not melt into it: in a run the prompt ends there."""
_DIGIT_OR_OPERATOR = r"[0-9]|(?<=[0-9])[-+*]|[-+*](?=[0-9])"
_MAX_TOKEN_CHARACTERS = 64
_MAX_VOCABULARY = 1024


def fit_tokenizer(texts: Iterable[str], max_length: int, pieces: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Fit a tokenizer to ``texts``, which are rendered conversations.

    Args:
        max_length: the model's context in tokens.
        pieces: regular expressions of text that is tokenized by itself, whatever stands around it.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join((_HEADER_END, *pieces, _DIGIT_OR_OPERATOR))), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_MAX_VOCABULARY,
        min_frequency=2,
        max_token_length=_MAX_TOKEN_CHARACTERS,
        special_tokens=[*CONTROL_TOKENS, *TAG_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    separators = "|".join(map(re.escape, (*CONTROL_TOKENS, *TAG_TOKENS)))
    bpe.train_from_iterator((piece for text in texts for piece in re.split(separators, text) if piece), trainer)
    bpe.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAG_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END_OF_TURN,
        pad_token=PADDING,
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
