"""DeepSeek-V3, R1 and Moonlight: multi-head latent attention, and a router of sigmoids that chooses groups of experts first."""

from asyncrl.core.architectures.architecture import ExpertNames
from asyncrl.core.architectures.description import Description, ExpertsDescription

DESCRIPTION = Description(
    name="DeepseekV3ForCausalLM",
    model_type="deepseek_v3",
    latent=True,
    engine_ties=False,
    needed=(
        *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts"),
        *("first_k_dense_replace", "routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob"),
        *("topk_method", "scoring_func"),  # which vLLM reads, and transformers does not
    ),
    experts=ExpertsDescription(
        count=("n_routed_experts",),
        channels="moe_intermediate_size",
        first_dense="first_k_dense_replace",
        shared_experts="n_shared_experts",
        sigmoid=True,
        grouped=True,
        names=ExpertNames(shared="mlp.shared_experts", shared_gate="", choice_bias="mlp.gate.e_score_correction_bias"),
    ),
)
