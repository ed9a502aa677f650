"""Products by small weights on a CPU: as exact as oneDNN's, with weights that can be packed anew."""

from unittest import mock

import pytest
import torch
from vllm import _custom_ops as ops
from vllm.model_executor.layers import utils

from asyncrl.core.process.processor import instructions
from asyncrl.generators.vllm.cpu.products import use_kernels_for_any_number_of_tokens


@pytest.fixture
def layer_of(monkeypatch):
    """Makes a layer as vLLM does when it has loaded it."""
    if "avx512_bf16" not in instructions():
        pytest.skip("this processor has no bfloat16 instructions of AVX-512")
    monkeypatch.setattr(utils, "check_cpu_sgl_kernel", utils.check_cpu_sgl_kernel)
    use_kernels_for_any_number_of_tokens()

    def make(weight, bias=None):
        layer = torch.nn.Module()
        layer.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
        layer.bias = None if bias is None else torch.nn.Parameter(bias.clone(), requires_grad=False)
        utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
        return layer

    return make


def product(layer, tokens):
    return layer.cpu_linear(tokens, layer.weight, layer.bias)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (48, 96), (512, 128), (128, 384)])
def test_any_number_of_tokens_gets_the_product_rounded_to_bfloat16(layer_of, outputs, inputs, biased):
    """Without oneDNN. Two layers: the weights of one are not those of the other."""
    random = torch.Generator().manual_seed(0)
    weights = [torch.randn(outputs, inputs, generator=random).bfloat16() for _ in range(2)]
    biases = [torch.randn(outputs, generator=random).bfloat16() if biased else None for _ in weights]
    layers = [layer_of(weight, bias) for weight, bias in zip(weights, biases, strict=True)]
    with mock.patch.object(ops, "onednn_mm", side_effect=AssertionError("oneDNN")):
        for count in (1, 2, 4, 5, 31, 33, 70, 257):
            tokens = torch.randn(count, inputs, generator=random).bfloat16()
            for layer, weight, bias in zip(layers, weights, biases, strict=True):
                exact = tokens.double() @ weight.double().t() + (0.0 if bias is None else bias.double())
                torch.testing.assert_close(product(layer, tokens).double(), exact, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize(
    ("outputs", "inputs", "dtype"),
    [(64, 64, torch.float32), (24, 64, torch.bfloat16), (64, 48, torch.bfloat16), (1024, 1024, torch.bfloat16)],
)
def test_other_weights_are_left_to_vllm(layer_of, outputs, inputs, dtype):
    tokens, weight = torch.ones(3, inputs, dtype=dtype), torch.ones(outputs, inputs, dtype=dtype)
    with mock.patch.object(ops, "weight_packed_linear_cpu", side_effect=AssertionError("vLLM's choice was changed")):
        assert (product(layer_of(weight), tokens) == inputs).all()
