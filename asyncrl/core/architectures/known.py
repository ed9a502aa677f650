"""The architectures that can be trained."""

from asyncrl.core.architectures import deepseek_v3, glm4_moe, gpt_oss, llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe
from asyncrl.core.architectures.description import Description, ExpertsDescription

KNOWN: dict[str, Description] = {
    module.DESCRIPTION.name: module.DESCRIPTION
    for module in (deepseek_v3, glm4_moe, gpt_oss, llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe)
}
"""By the name that ``config.json`` has in ``architectures``."""
OTHER = Description(
    name="none",
    model_type="none",
    experts=ExpertsDescription(count=("num_experts", "num_local_experts"), channels="moe_intermediate_size", some_layers=True),
)
"""What is assumed of models that cannot be trained, as judges and reward models may be."""
