"""Hand-written gradients against autograd through the plain formulas, in float64."""

import pytest
import torch

from learners.megatron.elementwise import gated_silu, rms_norm, rotate
from learners.megatron.row_moves import place_rows, take_rows


def plain_norm(values, weight):
    return values / (values.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def plain_gate(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return gate * torch.sigmoid(gate) * up


def plain_rotation(values, angles):
    first, second = values.double().chunk(2, -1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)


def compare(ours, plain, *inputs):
    """Values and all gradients, of a float32 computation against a float64 one."""
    single = [tensor.detach().clone().float().requires_grad_() for tensor in inputs]
    double = [tensor.double().requires_grad_() for tensor in inputs]
    result, expected = ours(*single), plain(*double)
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-6)
    slope = torch.randn(expected.shape, dtype=torch.float64)
    result.backward(slope.float())
    expected.backward(slope)
    for mine, theirs in zip(single, double, strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(7, 1, 16), (5, 1, 3, 8), (0, 1, 16)])
def test_rms_norm(shape):
    torch.manual_seed(0)
    compare(lambda x, w: rms_norm(x, w, 1e-5), plain_norm, torch.randn(shape), torch.randn(shape[-1]))


@pytest.mark.parametrize("tokens", [6, 0, 10_003])
def test_gated_silu(tokens):
    torch.manual_seed(0)
    compare(gated_silu, plain_gate, 3 * torch.randn(tokens, 1, 20))


def test_rotation():
    torch.manual_seed(0)
    angles = torch.randn(9, 1, 4, dtype=torch.float64)
    cosine, sine = angles.cos().float(), angles.sin().float()
    compare(lambda x: rotate(x, cosine, sine), lambda x: plain_rotation(x, angles), torch.randn(9, 3, 8))


def test_bfloat16_rounds_once_as_hugging_face_does():
    torch.manual_seed(0)
    values, weight = torch.randn(4, 32).bfloat16(), torch.randn(32).bfloat16()
    normed = values.float() * torch.rsqrt(values.float().square().mean(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(rms_norm(values, weight, 1e-6), normed.bfloat16() * weight)


def test_row_moves_are_each_others_gradient():
    torch.manual_seed(0)
    index = torch.tensor([4, 0, 2])
    compare(lambda x: take_rows(x, index), lambda x: x[index], torch.randn(6, 3, 2))
    compare(lambda x: place_rows(x, index, 6), lambda x: x.new_zeros(6, 2).index_put((index,), x), torch.randn(3, 2))
