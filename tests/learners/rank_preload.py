"""Imported once by the server that test ranks are forked from: everything that takes long to import."""

import transformers

from learners.megatron import cpu_compat

cpu_compat.install()

from transformers import LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM  # noqa: E402

import learners.learner  # noqa: E402
import learners.megatron.trainer  # noqa: E402

__all__ = ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "learners", "transformers"]
