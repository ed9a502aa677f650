"""Products by oneDNN against those by torch itself, and what a rank does, whatever its processor is."""

import subprocess
import sys

import pytest
import torch

from asyncrl.learners.megatron.cpu.onednn_products import add_product, product

SIZES = [(5, 7, 3), (64, 256, 96), (330, 1000, 17), (0, 4, 5), (4, 0, 5), (4, 5, 0), (1, 600, 600), (600, 1, 600)]


def close(found, exact):
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("turned", [False, True])
def test_products(size, turned):
    torch.manual_seed(0)
    rows, inner, columns = size
    left = torch.randn(inner, rows).t() if turned else torch.randn(rows, inner)
    right = torch.randn(columns, inner).t() if turned else torch.randn(inner, columns)
    found, exact = product(left, right), left.double() @ right.double()
    assert found.shape == (rows, columns)
    assert found.dtype is torch.float32
    close(found, exact)
    total = torch.ones(rows, columns)
    assert add_product(total, left, right) is total
    close(total, 1 + exact)
    close(add_product(total, left, right, beta=0.5, alpha=2.0), 0.5 + 2.5 * exact)


def test_parts_of_larger_matrices():
    torch.manual_seed(0)
    left, right = torch.randn(400, 600)[5:290:2, 3:510], torch.randn(1000, 900)[10:517, 1:801:3]
    close(product(left, right), left.double() @ right.double())
    gradient = torch.ones(1, 1).expand(143, 507)
    close(product(gradient, right), gradient.double() @ right.double())


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64, torch.int64])
def test_other_data_types_are_left_to_torch(kind):
    left, right = torch.arange(6).view(2, 3).to(kind), torch.arange(12).view(3, 4).to(kind)
    found = product(left, right)
    assert found.dtype is kind
    assert found.tolist() == [[20, 23, 26, 29], [56, 68, 80, 92]]


@pytest.mark.parametrize(
    ("left", "right", "problem"),
    [
        (torch.ones(200, 300), torch.ones(200, 300), "shapes cannot be multiplied"),
        (torch.ones(20, 30, 40), torch.ones(40, 300), "must be a matrix"),
        (torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64), "dtype"),
    ],
)
def test_what_cannot_be_multiplied_is_refused_in_torchs_words(left, right, problem):
    with pytest.raises(RuntimeError, match=problem):
        product(left, right)


@pytest.mark.parametrize("shape", [(128, 1600), (1600,), (2, 1, 1600)])
def test_a_total_of_another_shape_is_refused(shape):
    with pytest.raises(RuntimeError, match=r"in place|size"):
        add_product(torch.zeros(shape), torch.ones(1, 960), torch.ones(960, 1600))


def test_nan_is_kept():
    values = torch.ones(600, 600)
    values[0, 0], values[1, 1] = torch.nan, torch.inf
    found = product(values, torch.ones(600, 600))
    assert found[0].isnan().all()
    assert found[1].isinf().all()
    assert (found[2:] == 600).all()


PROGRAM = """
import os, re, sys, warnings
from pathlib import Path
import torch
from asyncrl.core.recipe.schema import DeadlinesConfig
from asyncrl.learners.megatron.cpu import compat, onednn_products
compat.install()
from asyncrl.learners.megatron import parallel
from asyncrl.learners.rank import FileMeeting, RankSpec
folder = Path(sys.argv[1])
onednn_products.ours_is_faster = lambda *_: sys.argv[2] == "faster"
calls = []
plain = onednn_products.product
onednn_products.product = lambda left, right: calls.append(1) or plain(left, right)
torch.manual_seed(0)
values, weight = torch.randn(60, 2, 80), torch.randn(400, 80, requires_grad=True)
def passes():
    weight.grad = None
    torch.matmul(values, weight.t()).square().sum().backward()
    return weight.grad
before = passes()
warnings.simplefilter("error")
parallel.initialise(RankSpec(rank=0, meeting=FileMeeting.make(folder / "meeting")), DeadlinesConfig(), 0)
torch.testing.assert_close(passes(), before)
print(len(calls))

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
weight = torch.randn(256, 768).bfloat16()
torch.randn(1300, 256).bfloat16() @ weight
before = resident()
for tokens in range(1000, 1300):
    torch.randn(tokens, 256).bfloat16() @ weight
print(resident() - before)
"""


@pytest.mark.parametrize("measured", ["faster", "slower"])
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch multiplies without MKL here")
def test_a_rank_multiplies_so_where_that_is_faster_and_keeps_little_of_it(tmp_path, measured):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), measured], capture_output=True, text=True, timeout=240)
    assert not done.returncode, done.stderr
    calls, megabytes = done.stdout.split()
    assert int(calls) == (2 if measured == "faster" else 0)  # forward, and the gradient of the weight
    assert float(megabytes) < 250  # 500 with as many shapes as oneDNN keeps by itself
