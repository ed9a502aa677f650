"""Hand-written gradients, by our own loops and by torch's operators, against autograd through the plain formulas, in float64."""

import pytest
import torch

from asyncrl.learners.megatron.cpu import kernels, row_threads
from asyncrl.learners.megatron.layers.row_moves import place_rows, take_rows


@pytest.fixture(params=[kernels.OURS, kernels.TORCHS], ids=["our loops", "torch's operators"])
def way(request):
    """Whatever is faster on this processor, both ways are tested."""
    return request.param


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


@pytest.mark.parametrize("shape", [(7, 1, 16), (5, 1, 3, 8), (0, 1, 16), (9, 4, 48), (3, 1, 128)])
def test_rms_norm(way, shape):
    torch.manual_seed(0)
    compare(lambda x, w: way.rms_norm(x, w, 1e-5), plain_norm, torch.randn(shape), torch.randn(shape[-1]))


@pytest.mark.parametrize("size", [20, 32, 96])
@pytest.mark.parametrize("tokens", [6, 0, 1003])
def test_gated_silu(way, tokens, size):
    torch.manual_seed(0)
    compare(way.gated_silu, plain_gate, 3 * torch.randn(tokens, 1, size))


def test_gated_silu_of_large_numbers(way):
    values = torch.tensor([-1e4, -200.0, -88.0, 88.0, 200.0, 1e15, torch.inf, torch.nan] * 4).repeat(1, 2)
    found = way.gated_silu(values)
    torch.testing.assert_close(found, torch.nn.functional.silu(values[:, :32]) * values[:, 32:], equal_nan=True)


@pytest.mark.parametrize("dim", [8, 32, 128])
def test_rotation(way, dim):
    torch.manual_seed(0)
    angles = torch.randn(9, 1, dim // 2, dtype=torch.float64)
    cosine, sine = angles.cos().float(), angles.sin().float()
    compare(lambda x: way.rotate(x, cosine, sine), lambda x: plain_rotation(x, angles), torch.randn(9, 3, dim))


def test_several_threads(way, monkeypatch):
    monkeypatch.setattr(row_threads, "_LEAST_NUMBERS", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    test_rms_norm(way, (10, 1, 32))
    test_gated_silu(way, 10, 64)
    test_rotation(way, 32)


@pytest.mark.parametrize("name", ["norm", "gated", "rotated"])
def test_bfloat16_of_loops_and_of_torchs_operators(name):
    """Both round once or twice, so they differ by the last bit here and there."""
    torch.manual_seed(0)
    angles = torch.randn(50, 1, 16)
    weight, cosine, sine = torch.randn(32).bfloat16(), angles.cos().bfloat16(), angles.sin().bfloat16()
    piece = {
        "norm": lambda way, x: way.rms_norm(x, weight, 1e-6),
        "gated": lambda way, x: way.gated_silu(x),
        "rotated": lambda way, x: way.rotate(x, cosine, sine),
    }[name]
    values = torch.randn(50, 3, 32).bfloat16()
    results = []
    for way in (kernels.OURS, kernels.TORCHS):
        given = values.clone().requires_grad_()
        result = piece(way, given)
        result.backward(torch.ones_like(result) * 0.7)
        results.append((result.detach().float(), given.grad.float()))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


def test_bfloat16_rounds_once_as_hugging_face_does(way):
    torch.manual_seed(0)
    values, weight = torch.randn(4, 32).bfloat16(), torch.randn(32).bfloat16()
    normed = values.float() * torch.rsqrt(values.float().square().mean(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(way.rms_norm(values, weight, 1e-6), normed.bfloat16() * weight)


def test_row_moves_are_each_others_gradient():
    torch.manual_seed(0)
    index = torch.tensor([4, 0, 2])
    compare(lambda x: take_rows(x, index), lambda x: x[index], torch.randn(6, 3, 2))
    compare(lambda x: place_rows(x, index, 6), lambda x: x.new_zeros(6, 2).index_put((index,), x), torch.randn(3, 2))
