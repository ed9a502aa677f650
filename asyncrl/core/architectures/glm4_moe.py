"""GLM-4.5 and 4.6: a router of sigmoids, whose choice has a bias of its own, and an expert that every token goes to."""

from asyncrl.core.architectures.architecture import ExpertNames
from asyncrl.core.architectures.description import Description, ExpertsDescription

DESCRIPTION = Description(
    name="Glm4MoeForCausalLM",
    model_type="glm4_moe",
    biases="attention_bias",
    head_norms="use_qk_norm",
    partial_rotation=True,
    engine_ties=False,
    needed=(
        *("num_key_value_heads", "head_dim", "attention_bias", "use_qk_norm", "partial_rotary_factor"),
        *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts"),
        *("first_k_dense_replace", "routed_scaling_factor", "n_group", "norm_topk_prob"),
    ),
    experts=ExpertsDescription(
        count=("n_routed_experts",),
        channels="moe_intermediate_size",
        first_dense="first_k_dense_replace",
        shared_experts="n_shared_experts",
        sigmoid=True,
        names=ExpertNames(shared="mlp.shared_experts", shared_gate="", choice_bias="mlp.gate.e_score_correction_bias"),
    ),
)
