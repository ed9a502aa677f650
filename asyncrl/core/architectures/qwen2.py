"""Qwen2 and Qwen2.5."""

from asyncrl.core.architectures.description import Description

DESCRIPTION = Description(name="Qwen2ForCausalLM", model_type="qwen2", biases=True, needed=("num_key_value_heads",))
