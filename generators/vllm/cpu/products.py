"""Has vLLM multiply by small weights with kernels that serve any number of tokens.

On a CPU, vLLM multiplies with oneDNN, which makes machine code for each shape. Few steps have as many tokens as one before
them, so a new engine for a small model spends a tenth of its time on making code. vLLM also has kernels that serve any number
of tokens, but takes them only on processors with AMX. They need no AMX: without it, they use AVX-512's bfloat16 instructions.

What always holds: where vLLM takes these kernels by itself, for weights of more than a MiB, and for other types than bfloat16,
vLLM's choice stands.
"""

import torch

from asyncrl.core.process.processor import instructions


def use_kernels_for_any_number_of_tokens() -> None:
    """Have vLLM take such kernels for layers that this process loads from now on, if the processor has the instructions."""
    from vllm.model_executor.layers import utils

    chosen_by_vllm = utils.check_cpu_sgl_kernel

    def chosen(outputs: int, inputs: int, dtype: torch.dtype) -> bool:
        """Return whether such a kernel multiplies by weights [outputs, inputs]."""
        small = outputs * inputs * dtype.itemsize <= utils._CPU_SGL_GEMM_MAX_WEIGHT_BYTES
        fits = dtype is torch.bfloat16 and outputs % 16 == 0 and inputs % 32 == 0
        return (small and fits) or chosen_by_vllm(outputs, inputs, dtype)

    if "avx512_bf16" in instructions():
        utils.check_cpu_sgl_kernel = chosen
