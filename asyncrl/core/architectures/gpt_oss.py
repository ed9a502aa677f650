"""gpt-oss: attention with sinks, in every second layer over a window; biases everywhere; experts with a clamped gate."""

from asyncrl.core.architectures.architecture import ExpertNames
from asyncrl.core.architectures.description import Description, ExpertsDescription

DESCRIPTION = Description(
    name="GptOssForCausalLM",
    model_type="gpt_oss",
    biases=True,
    output_bias=True,
    sinks=True,
    engine_ties=False,
    needed=(
        *("num_key_value_heads", "head_dim", "num_local_experts", "num_experts_per_tok", "sliding_window"),
        *("rope_theta", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow"),  # which vLLM reads
    ),
    experts=ExpertsDescription(
        count=("num_local_experts",),
        channels="intermediate_size",
        normalised=True,
        names=ExpertNames(router="router", joint=True),
    ),
)
