"""The Triton kernels of log-probabilities on a CPU: interpreted, they compute what float64 does, and they compile for GPUs."""

import os
import subprocess
import sys

import pytest
from fetched_wheels import unpacked_wheel

GPU_TRITON = "triton==3.7.1"
"""What an installation for GPUs has (``test_gpu_extra.py``); it is read from the cache and never installed."""

COMPARE = """
import datetime, os, sys, torch, torch.distributed as dist
from asyncrl.learners.megatron.layers import log_probabilities, tile_kernels
from asyncrl.learners.megatron.layers.log_probabilities import Tile, token_log_probabilities

store, ranks = sys.argv[1], int(sys.argv[2])
child = os.fork() if ranks == 2 else 0
rank = 1 if ranks == 2 and not child else 0
dist.init_process_group(
    "gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60)
)
HIDDEN = 3 * torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
WEIGHT = torch.randn(2100, 8, generator=torch.Generator().manual_seed(2))
TARGETS = torch.tensor([0, 2099, 1100, 1049, 7])
WEIGHT[7] = 4.2 * HIDDEN[4] / HIDDEN[4].norm()  # a token whose probability is nearly 1
ENTRIES = 1100 // ranks  # of a tile: of two, the second is smaller
TILES = 4

def loss_of(logp, entropy, bonus):
    loss = (logp * torch.tensor([1.0, -2.0, 0.5, 3.0, 4.0])).sum()
    return loss + bonus * (entropy ** 2).sum() if bonus else loss

def exact(dtype, temperature, bonus):
    hidden, weight = (each.to(dtype).double().requires_grad_() for each in (HIDDEN, WEIGHT))
    every = torch.log_softmax(hidden @ weight.t() / temperature, -1)
    found = every[torch.arange(5), TARGETS], -(every.exp() * every).sum(-1)
    of_hidden, of_weight = torch.autograd.grad(loss_of(*found, bonus), (hidden, weight))
    return [*found, of_hidden, of_weight.chunk(ranks)[rank]]

def ours(dtype, temperature, bonus, kept_bytes, accumulated):
    hidden, weight = (each.to(dtype, copy=True).requires_grad_() for each in (HIDDEN, WEIGHT.chunk(ranks)[rank]))
    if accumulated:
        weight.main_grad = torch.ones(weight.shape)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each) or each, lambda each: each):
        found = token_log_probabilities(
            hidden, weight, TARGETS, temperature, dist.group.WORLD, Tile(tokens=3, entries=ENTRIES), kept_bytes=kept_bytes
        )
    memory = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in saved}
    if kernels is None or kept_bytes < 3 * ENTRIES * dtype.itemsize:
        assert sum(memory.values()) == hidden.nbytes + weight.nbytes + (8 + 3 * 4) * len(TARGETS), "four numbers per token"
    loss_of(*found, bonus).backward()
    assert (weight.grad is None) == accumulated
    dist.all_reduce(hidden.grad)
    return [*found, hidden.grad, weight.main_grad - 1 if accumulated else weight.grad]

# A CPU has no products of bfloat16 with float32 results.
log_probabilities._operand = lambda matrix: matrix
log_probabilities.product = lambda left, right: left.float() @ right.float()
log_probabilities.add_product = lambda total, left, right: total.addmm_(left.float(), right.float())
calls = []
for name in ("gradient_of_tile", "gradient_of_kept"):
    def counted(*arguments, original=getattr(tile_kernels, name), name=name):
        calls.append(name)
        return original(*arguments)
    setattr(tile_kernels, name, counted)

for kernels in (None, tile_kernels):
    log_probabilities._kernels = lambda hidden: kernels
    for dtype, gap, confident_gap in ((torch.float32, 3e-6, 1e-3), (torch.bfloat16, 1e-2, 2e-2)):
        a_tile = 3 * ENTRIES * dtype.itemsize
        for temperature, bonus in ((1.0, 0.0), (0.7, 0.0), (0.7, 0.3)):
            expected = exact(dtype, temperature, bonus)
            for kept_bytes, kept, accumulated in ((a_tile - 1, 0, False), (a_tile, 1, True), (1 << 20, TILES, False)):
                calls.clear()
                found = ours(dtype, temperature, bonus, kept_bytes, accumulated)
                for one, wanted in zip(found, expected, strict=True):
                    assert (one - wanted).norm() <= gap * wanted.norm(), (kernels, dtype, temperature, bonus, kept_bytes)
                # The token of probability nearly 1: its gradient is small, and what is left of 1 does not drown in it.
                assert (found[2][4] - expected[2][4]).norm() <= confident_gap * expected[2][4].norm()
                if kernels is not None:
                    kept = 0 if bonus else kept
                    assert [calls.count(name) for name in ("gradient_of_kept", "gradient_of_tile")] == [kept, TILES - kept]
dist.destroy_process_group()
if rank:
    os._exit(0)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""

COMPILE = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from asyncrl.learners.megatron.layers import tile_kernels

assert sys.argv[1] in ("", triton.__version__)
TYPES = {
    **{"targets": "*i64", "entries": "i32", "temperature": "fp32", "least": "fp32"},
    **{"gradient": "*bf16", "kept": "*bf16"},
}
for kernel, constants in (
    (tile_kernels._reduce_kernel, {"BLOCK": 8192, "KEEP": False}),
    (tile_kernels._reduce_kernel, {"BLOCK": 8192, "KEEP": True}),
    (tile_kernels._gradient_kernel, {"BLOCK": 2048, "WITH_ENTROPY": False}),
    (tile_kernels._gradient_kernel, {"BLOCK": 2048, "WITH_ENTROPY": True}),
    (tile_kernels._kept_gradient_kernel, {"BLOCK": 2048}),
):
    signature = {name: "constexpr" if name in constants else TYPES.get(name, "*fp32") for name in kernel.arg_names}
    for capability in (80, 90):
        options = {"num_warps": 8}
        compiled = triton.compile(
            ASTSource(kernel, signature, constants), target=GPUTarget("cuda", capability, 32), options=options
        )
        assert compiled.asm["cubin"]
        assert compiled.metadata.num_warps == 8
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_interpreted_kernels_compute_what_float64_does(ranks, tmp_path):
    """Log-probabilities, entropies and gradients, with and without exponentials kept between the passes, over one vocabulary and
    one that two ranks divide; and so do torch's operators."""
    _run(COMPARE, tmp_path, str(tmp_path / "store"), str(ranks), interpreted="1")


def test_kernels_compile_for_gpus(tmp_path):
    _run(COMPILE, tmp_path, "", interpreted="0")


def test_kernels_compile_for_gpus_with_the_triton_of_an_installation_for_gpus(tmp_path):
    wheel = unpacked_wheel(GPU_TRITON, compiled=True)
    for program in (wheel / "triton" / "backends" / "nvidia" / "bin").iterdir():
        program.chmod(0o755)  # which archives of zipfile's forget
    _run(COMPILE, tmp_path, GPU_TRITON.partition("==")[2], interpreted="0", before=(wheel,))


def _run(script, folder, *arguments, interpreted, before=()):
    pytest.importorskip("triton")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [*map(str, before), *sys.path])),
        "TRITON_INTERPRET": interpreted,
        "TRITON_CACHE_DIR": str(folder / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
