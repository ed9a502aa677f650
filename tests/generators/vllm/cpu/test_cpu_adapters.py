"""The products of adapters on a CPU, against the same in float64 token by token."""

import pytest
import torch
from vllm.lora.layers import LoRAMapping

from asyncrl.generators.vllm.cpu.adapters import CpuAdapters

INPUTS, WIDTHS, RANK, SCALE = 6, (5, 3), 4, 1.5
BUFFERS = [9, None, 7]
"""vLLM's numbers of the adapters in its three buffers."""


@pytest.mark.parametrize("of_tokens", [(7,) * 4, (9, 7, 7, 9, 9), (0, 9, 0, 7), (0, 0)])
def test_each_token_gets_what_its_own_adapter_adds(of_tokens: tuple[int, ...]) -> None:
    """0 is no adapter."""
    generator = torch.Generator().manual_seed(0)
    first = tuple(torch.randn(len(BUFFERS), 1, RANK, INPUTS, generator=generator) for _ in WIDTHS)
    second = tuple(torch.randn(len(BUFFERS), 1, width, RANK, generator=generator) for width in WIDTHS)
    x, before = torch.randn(len(of_tokens), INPUTS, generator=generator), torch.randn(len(of_tokens), 8, generator=generator)
    products = CpuAdapters(64, 8, "cpu")
    products.update_metadata(LoRAMapping(of_tokens, of_tokens, is_prefill=True), BUFFERS, len(BUFFERS) + 1, 100)
    y = before.clone()
    products.add_lora_linear(y, x, first, second, SCALE, WIDTHS)
    for token, adapter in enumerate(of_tokens):
        expected = before[token].double()
        if adapter:
            buffer = BUFFERS.index(adapter)
            inner = [matrix[buffer, 0].double() @ x[token].double() for matrix in first]
            added = [matrix[buffer, 0].double() @ values for matrix, values in zip(second, inner, strict=True)]
            expected = expected + SCALE * torch.cat(added)
        torch.testing.assert_close(y[token].double(), expected, atol=1e-5, rtol=1e-5)
