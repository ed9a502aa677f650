"""A small model with experts."""

import torch
from small_engine import SIZES, rule_out_stopping
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM


def small_mixture() -> Qwen3MoeForCausalLM:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, norm_topk_prob=True)
    model = Qwen3MoeForCausalLM(config).eval()
    rule_out_stopping(model)
    return model
