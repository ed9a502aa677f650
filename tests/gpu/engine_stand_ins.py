"""Stand-ins in torch for the C functions of TransformerEngine that dense layers call, so that its Python runs on a CPU.

Only a process of its own may install them: all else that imports TransformerEngine afterwards gets them.
"""

import enum
import os
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import attention_stand_ins
import torch

NAME = "transformer_engine_torch"
CALLS: Counter[str] = Counter()
"""How often each stand-in was called."""


class Extension(ModuleType):
    """The C extension. What no step calls is there, and may be named when a module is imported, but fails if it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = mock.MagicMock(name=f"{NAME}.{name}")
        setattr(self, name, value)
        return value


def install(wheel: Path) -> None:
    """Make ``transformer_engine`` importable from an unpacked wheel, with stand-ins for its extension."""
    sources = [file.read_text() for file in (wheel / "transformer_engine" / "pytorch").rglob("*.py")]
    names = sorted({name for source in sources for name in re.findall(r"DType\.(k\w+)", source)})
    extension = Extension(NAME)
    extension.DType = enum.IntEnum("DType", {name: number for number, name in enumerate(names)})
    for base in ("CommOverlapHelper", "CommOverlap", "CommOverlapP2P", "CommOverlapCore", "CommOverlapBase", "FP8TensorMeta"):
        setattr(extension, base, type(base, (), {}))
    extension.get_cudnn_version = lambda: 92000
    extension.get_cublasLt_version = lambda: 130000
    for function in (rmsnorm_fwd, rmsnorm_bwd, generic_gemm, fused_rope_forward, fused_rope_backward):
        setattr(extension, function.__name__, counted(function))
    for function in (multi_tensor_l2norm, multi_tensor_scale, multi_tensor_adam, te_general_grouped_gemm):
        setattr(extension, function.__name__, counted(function))
    for function in attention_stand_ins.FUNCTIONS:
        setattr(extension, function.__name__, counted(function))
    for source in sources:  # a name that is looked up while torch traces must be there already
        for name in re.findall(rf"\b(?:tex|{NAME})\.([A-Za-z]\w*)", source):
            getattr(extension, name)
    for package in ("onnx", "onnxscript", "onnxscript.opset"):  # for exporting models, which no step does
        sys.modules[package] = mock.MagicMock(name=package)
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # else it looks for its libraries of C code
    sys.modules[NAME] = extension
    sys.path.insert(0, str(wheel))
    import transformer_engine.common as common

    common.load_framework_extension = lambda *_: None


def counted(function: Any) -> Any:
    def calling(*arguments: Any, **options: Any) -> Any:
        CALLS[function.__name__] += 1
        return function(*arguments, **options)

    return calling


def rmsnorm_fwd(x, weight, eps, out, quantizer, dtype, margin, zero_centered):
    assert quantizer is None
    assert not zero_centered
    inverse = torch.rsqrt(x.float().square().mean(-1) + eps)
    normed = (x.float() * inverse[:, None] * weight.float()).to(x.dtype)
    return (normed if out is None else out.copy_(normed)), None, inverse


def rmsnorm_bwd(gradient, x, inverse, weight, margin, zero_centered):
    with torch.enable_grad():
        inputs = x.detach().float().requires_grad_(), weight.detach().float().requires_grad_()
        scaled = inputs[0] * torch.rsqrt(inverse.float().pow(-2)[:, None].detach() + _square_part(inputs[0]))
        of_x, of_weight = torch.autograd.grad(scaled * inputs[1], inputs, gradient.float())
    return of_x.to(x.dtype), of_weight.to(weight.dtype)


def _square_part(x):
    """Zero, with the gradient of the mean square."""
    square = x.square().mean(-1, keepdim=True)
    return square - square.detach()


def generic_gemm(
    a, transposed_a, b, transposed_b, out, quantizer, out_dtype, bias, bias_dtype, gelu, gelu_in, grad, *rest, **options
):
    """As cuBLAS has it, column by column, so ``b`` comes first. ``rest``: workspace, its size, accumulate, what no CPU has."""
    assert quantizer is None
    assert not gelu
    accumulate, alpha = rest[2], options.get("alpha", 1.0)
    left, right = b.reshape(-1, b.shape[-1]).float(), a.reshape(-1, a.shape[-1]).float()
    made = alpha * (left.T if transposed_b else left) @ (right.T if transposed_a else right)
    of_bias = None
    if bias is not None and grad:
        of_bias = left.sum(0).to(bias.dtype)
    elif bias is not None:
        made = made + bias.float()
    if not transposed_b and b.dim() > 2:
        made = made.reshape(*b.shape[:-1], made.shape[-1])
    if out is None:
        return made.to(a.dtype), of_bias, gelu_in, options.get("extra_output")
    made = made.reshape(out.shape).to(out.dtype)
    (out.add_ if accumulate else out.copy_)(made)
    return out, of_bias, gelu_in, options.get("extra_output")


def te_general_grouped_gemm(
    a,
    transposed_a,
    b,
    transposed_b,
    out,
    out_dtype,
    sizes,
    bias,
    bias_dtype,
    single,
    gelu_in,
    grad,
    space,
    space_size,
    accumulate,
    *rest,
):
    """A product for each expert; ``a`` and ``b`` are lists of matrices, some without rows."""
    outputs = out[0].split(list(sizes)) if single else out
    for of_a, of_b, target in zip(a, b, outputs, strict=True):
        left, right = of_b.reshape(-1, of_b.shape[-1]).float(), of_a.reshape(-1, of_a.shape[-1]).float()
        if target.numel():
            made = (left.T if transposed_b else left) @ (right.T if transposed_a else right)
            (target.add_ if accumulate else target.copy_)(made.reshape(target.shape).to(target.dtype))
    return bias


def fused_rope_forward(x, angles, start, layout, interleaved, bounds, ranks, rank):
    assert (ranks, interleaved, start) == (1, False, None)
    return _rotated(x, angles, bounds, 1)


def fused_rope_backward(gradient, angles, start, layout, interleaved, bounds, ranks, rank):
    return _rotated(gradient, angles, bounds, -1)


def _rotated(x, angles, bounds, sign):
    places = torch.cat([torch.arange(length) for length in bounds.diff().tolist()])
    assert len(places) == len(x)
    turned = angles[places, 0].float()
    first, second = x.float().chunk(2, -1)
    return (x.float() * turned.cos() + sign * torch.cat((-second, first), -1) * turned.sin()).to(x.dtype)


def multi_tensor_l2norm(chunk, overflow, lists, per_tensor=False):
    return torch.stack([each.float().norm() for each in lists[0]]).norm().reshape(1), torch.empty(0)


def multi_tensor_scale(chunk, overflow, lists, factor):
    for source, target in zip(*lists, strict=True):
        target.copy_(source * float(factor))


def multi_tensor_adam(chunk, overflow, lists, rate, beta1, beta2, eps, step, mode, corrected, decay):
    assert corrected
    for gradient, weight, first, second in zip(*lists[:4], strict=True):
        first.lerp_(gradient.float(), 1 - beta1)
        second.mul_(beta2).addcmul_(gradient.float(), gradient.float(), value=1 - beta2)
        root = (second / (1 - beta2 ** int(step))).sqrt() + eps
        weight.sub_(float(rate) * (first / (1 - beta1 ** int(step)) / root + decay * weight))
