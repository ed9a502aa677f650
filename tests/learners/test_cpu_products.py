"""Products by oneDNN against those by torch itself, in a process of their own, whatever its processor is."""

import subprocess
import sys

import pytest
import torch

from learners.megatron.cpu_products import product

SIZES = [(5, 7, 3), (64, 256, 96), (1, 1, 1), (33, 1000, 17), (0, 4, 5), (4, 0, 5), (4, 5, 0)]


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
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-6 * max(inner, 1))


def test_parts_of_larger_matrices():
    torch.manual_seed(0)
    left, right = torch.randn(40, 60)[5:29:2, 3:51], torch.randn(100, 90)[10:58, 1:81:3]
    torch.testing.assert_close(product(left, right), left.contiguous() @ right.contiguous())


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64, torch.int64])
def test_other_data_types_are_left_to_torch(kind):
    left, right = torch.arange(6).view(2, 3).to(kind), torch.arange(12).view(3, 4).to(kind)
    found = product(left, right)
    assert found.dtype is kind
    assert found.tolist() == [[20, 23, 26, 29], [56, 68, 80, 92]]


def test_matrices_of_two_data_types_are_refused():
    with pytest.raises(RuntimeError, match="dtype"):
        product(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64))


def test_not_a_number_is_kept():
    assert product(torch.tensor([[torch.nan, 1.0], [1.0, torch.inf]]), torch.ones(2, 1)).isfinite().sum() == 0


PROGRAM = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("error")
import torch
from learners.megatron import cpu_products
cpu_products._PROCESSOR = Path(sys.argv[1])
calls = []
plain = cpu_products.product
cpu_products.product = lambda left, right: calls.append(1) or plain(left, right)
torch.manual_seed(0)
values, weight = torch.randn(6, 2, 8), torch.randn(4, 8, requires_grad=True)
def passes():
    weight.grad = None
    torch.matmul(values, weight.t()).square().sum().backward()
    return weight.grad
before = passes()
for _ in range(2):
    cpu_products.multiply_with_onednn()
torch.testing.assert_close(passes(), before)
assert torch.mm(torch.eye(3).bfloat16(), torch.eye(3).bfloat16()).dtype is torch.bfloat16
print(len(calls))
"""


@pytest.mark.parametrize(("vendor", "used"), [("AuthenticAMD", True), ("GenuineIntel", False)])
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch multiplies without MKL here")
def test_torch_multiplies_so_forward_and_backward(tmp_path, vendor, used):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "cpuinfo")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=240)
    assert not done.returncode, done.stderr
    assert int(done.stdout) == (3 if used else 0)
