"""What torch compiles for a GPU: the same values and gradients as the plain formulas in float64, and one compilation for all
numbers of tokens, because each takes seconds."""

import functools
import itertools

import pytest
import torch
from test_elementwise import compare, plain_gate, plain_norm, plain_rotation
from torch._dynamo.testing import CompileCounterWithBackend

from asyncrl.learners.megatron.kernels import kernels_of
from asyncrl.learners.megatron.layers import compiled

TOKENS = (7, 3, 64, 33)


@pytest.fixture
def counter(monkeypatch):
    """Counts compilations. On a GPU, the same is done by torch's own compiler, which takes longer."""
    torch._dynamo.reset()
    compiled.compiled.cache_clear()
    counter, compile_ = CompileCounterWithBackend("aot_eager"), torch.compile
    monkeypatch.setattr(torch, "compile", lambda formula, **options: compile_(formula, backend=counter, **options))
    yield counter
    compiled.compiled.cache_clear()


@pytest.mark.parametrize("shape", [(1, 16), (1, 3, 8), (4, 48)])
def test_rms_norm(counter, shape):
    torch.manual_seed(0)
    for tokens in TOKENS:
        values, weight = torch.randn(tokens, *shape), torch.randn(shape[-1])
        compare(lambda x, w: compiled.rms_norm(x, w, 1e-5), plain_norm, values, weight)
    assert counter.frame_count == 1


def test_gated_silu(counter):
    torch.manual_seed(0)
    for tokens in TOKENS:
        compare(compiled.gated_silu, plain_gate, 3 * torch.randn(tokens, 1, 32))
    assert counter.frame_count == 1


def test_rotation(counter):
    torch.manual_seed(0)
    for tokens in TOKENS:
        angles = torch.randn(tokens, 1, 8)
        compare(
            lambda x, angles=angles: compiled.rotate(x, angles.cos(), angles.sin()),
            lambda x, angles=angles: plain_rotation(x, angles.double()),
            torch.randn(tokens, 4, 16),
        )
    assert counter.frame_count == 1


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("rotated", [8, 6])
def test_queries_keys_and_values(counter, rotated, normed):
    """Two groups of three queries, a key and a value, of which the first ``rotated`` channels are rotated."""
    torch.manual_seed(0)

    def plain(projected, *weights, angles):
        heads = list(projected.split((3, 1, 1), 2))
        for number, weight in enumerate(weights):
            heads[number] = plain_norm(heads[number], weight)
        for number in (0, 1):
            turned = plain_rotation(heads[number][..., :rotated], angles.double().unsqueeze(2))
            heads[number] = torch.cat([turned, heads[number][..., rotated:]], -1)
        return torch.cat([each.flatten(1, 2) for each in heads], 1)

    def ours(projected, *weights, angles):
        return torch.cat(compiled.heads(projected, (angles.cos(), angles.sin()), weights or None, 1e-5), 1)

    for tokens in TOKENS:
        angles = torch.randn(tokens, 1, rotated // 2)
        weights = (torch.randn(8), torch.randn(8)) if normed else ()
        ways = (functools.partial(way, angles=angles) for way in (ours, plain))
        compare(*ways, torch.randn(tokens, 2, 5, 8), *weights)
    assert counter.frame_count == 1


def test_one_model_s_kinds_of_norms_do_not_exhaust_the_compiler(counter):
    """Beyond its limit, torch would go back to single operators with no more than a line in the log."""
    shapes = (1, 32), (4, 16), (2, 16)
    for shape, gradient, frozen in itertools.product(shapes, (True, False), (True, False)):
        weight = torch.randn(shape[-1], requires_grad=not frozen)
        with torch.set_grad_enabled(gradient):
            compiled.rms_norm(torch.randn(5, *shape), weight, 1e-5)
    before = counter.frame_count
    compiled.rms_norm(torch.randn(9, 5, 24), torch.randn(24), 1e-5)
    assert counter.frame_count == before + 1


def test_a_gpu_s_layers_are_computed_by_them():
    kernels = kernels_of(torch.device("cuda"), None)
    pieces = kernels.rms_norm, kernels.gated_silu, kernels.rotate, kernels.heads
    assert pieces == (compiled.rms_norm, compiled.gated_silu, compiled.rotate, compiled.heads)
