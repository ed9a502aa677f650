"""A reward model that is made in no time, for whole runs."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoTokenizer, Qwen2Config, Qwen2ForSequenceClassification


def make_reward_model(folder: Path, policy: Path) -> None:
    """Make a reward model of random weights in ``folder``, for the tokens of the model in ``policy``."""
    tokenizer, vocabulary = AutoTokenizer.from_pretrained(policy), AutoConfig.from_pretrained(policy).vocab_size
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    config = Qwen2Config(vocab_size=vocabulary, num_labels=1, pad_token_id=tokenizer.pad_token_id, **sizes)
    made = Qwen2ForSequenceClassification(config)
    torch.nn.init.normal_(made.score.weight)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
