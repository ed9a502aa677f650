"""Qwen1.5-MoE and Qwen2-57B-A14B. Every token goes to one further expert, by a gate of its own."""

from asyncrl.core.architectures.description import Description, ExpertsDescription

DESCRIPTION = Description(
    name="Qwen2MoeForCausalLM",
    model_type="qwen2_moe",
    biases=True,
    needed=(
        *("num_key_value_heads", "num_experts", "num_experts_per_tok"),
        *("moe_intermediate_size", "shared_expert_intermediate_size"),
    ),
    experts=ExpertsDescription(
        count=("num_experts", "num_local_experts"),
        channels="moe_intermediate_size",
        some_layers=True,
        shared="shared_expert_intermediate_size",
    ),
)
