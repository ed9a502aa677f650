"""The Triton kernels of log-probabilities on a CPU: interpreted, they compute what torch's operators do, and they compile for
GPUs."""

import os
import subprocess
import sys

import pytest

COMPARE = """
import torch, torch.distributed as dist
from learners.megatron.layers import log_probabilities, tile_kernels
from learners.megatron.layers.log_probabilities import Tile, token_log_probabilities

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)

def outcome(temperature, bonus):
    hidden = (3 * torch.randn(5, 8, generator=torch.Generator().manual_seed(1))).requires_grad_()
    weight = torch.randn(2100, 8, generator=torch.Generator().manual_seed(2)).requires_grad_()
    targets = torch.tensor([0, 2099, 1100, 1099, 7])
    found = token_log_probabilities(hidden, weight, targets, temperature, dist.group.WORLD, Tile(tokens=3, entries=1100))
    loss = (found.logp * torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0])).sum() + bonus * (found.entropy ** 2).sum()
    return [*found, *torch.autograd.grad(loss, (hidden, weight))]

for temperature in (1.0, 0.7):
    for bonus in (0.0, 0.3):
        expected = outcome(temperature, bonus)
        log_probabilities._kernels = lambda hidden: tile_kernels
        fused = outcome(temperature, bonus)
        log_probabilities._kernels = lambda hidden: None
        for one, other in zip(fused, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)
"""

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from learners.megatron.layers import tile_kernels

TYPES = {"targets": "*i64", "entries": "i32", "temperature": "fp32", "least": "fp32", "gradient": "*bf16"}
for kernel, constants in (
    (tile_kernels._reduce_kernel, {"BLOCK": 1024}),
    (tile_kernels._gradient_kernel, {"BLOCK": 1024, "WITH_ENTROPY": False}),
    (tile_kernels._gradient_kernel, {"BLOCK": 1024, "WITH_ENTROPY": True}),
):
    signature = {name: "constexpr" if name in constants else TYPES.get(name, "*fp32") for name in kernel.arg_names}
    for capability in (80, 90):
        compiled = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", capability, 32))
        assert compiled.asm["cubin"]
"""


@pytest.mark.parametrize(("script", "interpreted"), [(COMPARE, "1"), (COMPILE, "0")], ids=["compare", "compile"])
def test_kernels(script, interpreted, tmp_path):
    pytest.importorskip("triton")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TRITON_INTERPRET": interpreted,
        "TRITON_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
