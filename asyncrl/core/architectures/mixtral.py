"""Mixtral: Mistral with experts in every layer, whose tensors have names of their own."""

from asyncrl.core.architectures.architecture import ExpertNames
from asyncrl.core.architectures.description import Description, ExpertsDescription

DESCRIPTION = Description(
    name="MixtralForCausalLM",
    model_type="mixtral",
    needed=("num_key_value_heads", "num_local_experts", "num_experts_per_tok"),
    experts=ExpertsDescription(
        count=("num_local_experts",),
        channels="intermediate_size",
        normalised=True,
        names=ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2"),
    ),
)
