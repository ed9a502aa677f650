"""Qwen3 with experts."""

from asyncrl.core.architectures.description import Description, ExpertsDescription

DESCRIPTION = Description(
    name="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    head_norms=True,
    needed=("num_key_value_heads", "head_dim"),
    experts=ExpertsDescription(count=("num_experts", "num_local_experts"), channels="moe_intermediate_size", some_layers=True),
)
