"""Llama 2 and 3, and what others train in their shape."""

from asyncrl.core.architectures.description import Description

DESCRIPTION = Description(name="LlamaForCausalLM", model_type="llama")
