"""A reward model and a teacher that are made in no time, for whole runs."""

from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)


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


def make_teacher(folder: Path, policy: Path) -> Path:
    """Make a teacher of random weights in ``folder``, of another architecture and size than the model in ``policy``, for its
    tokens."""
    tokenizer, vocabulary = AutoTokenizer.from_pretrained(policy), AutoConfig.from_pretrained(policy).vocab_size
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
    }
    made = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, initializer_range=0.2, **sizes))
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
