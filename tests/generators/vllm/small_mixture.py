"""A small model with experts."""

import torch
from small_engine import LONGEST, rule_out_stopping
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM


def small_mixture() -> Qwen3MoeForCausalLM:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=320,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        norm_topk_prob=True,
        max_position_embeddings=LONGEST,
        initializer_range=0.2,
        dtype="float32",
    )
    model = Qwen3MoeForCausalLM(config).eval()
    rule_out_stopping(model)
    return model
