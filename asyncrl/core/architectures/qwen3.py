"""Qwen3, dense."""

from asyncrl.core.architectures.description import Description

DESCRIPTION = Description(
    name="Qwen3ForCausalLM", model_type="qwen3", head_norms=True, needed=("num_key_value_heads", "head_dim")
)
