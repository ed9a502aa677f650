"""Mistral. Its first version attends to a window of 4,096 tokens, which the learner does not compute."""

from asyncrl.core.architectures.description import Description

DESCRIPTION = Description(
    name="MistralForCausalLM",
    model_type="mistral",
    needed=("num_key_value_heads", "sliding_window"),
)
