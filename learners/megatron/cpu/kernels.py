"""Chooses what the layers of a model are computed by on this processor: piece by piece, code of our own where it is measured to
be faster, otherwise torch's operators."""

from collections.abc import Callable

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from learners.megatron.cpu import elementwise as ours
from learners.megatron.cpu.attention import attention_on_cpu, prepare
from learners.megatron.cpu.piece_speed import made_values, ours_is_faster
from learners.megatron.layers import elementwise as torchs
from learners.megatron.layers.attention import attention_in_blocks
from learners.megatron.layers.kernels import Kernels
from learners.megatron.layers.packed_rows import PackedRows

_TOKENS, _ROWS = 1024, 4
"""Tokens that pieces are measured on, and rows that they make for attention."""
_SIZE, _HEADS = 256, 4
"""Channels of a model of a few million parameters, and heads that they are rotated in."""


def _attention(query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, scale: float | None) -> Tensor:
    return attention_on_cpu(query, key, value, packed.segment_table, scale).flatten(1)


def _attention_of_rows_by_torch(query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, scale: float | None) -> Tensor:
    """Leave to torch what continues no shared prefix; it has no kernel for the rest."""
    return (_attention if packed.prefixes else attention_in_blocks)(query, key, value, packed, scale)


OURS = Kernels(ours.rms_norm, ours.gated_silu, ours.rotate, _attention)
TORCHS = Kernels(torchs.rms_norm, torchs.gated_silu, torchs.rotate, _attention_of_rows_by_torch)

_Piece = Callable[[Kernels], Tensor]
"""Computes a piece once, by the one or the other."""


def kernels_of_cpu(config: TransformerConfig) -> Kernels:
    """Return the kernels for a model of this configuration. Attention is in float32, whatever the model's data type."""
    heads, dtype = config.num_attention_heads, config.params_dtype
    groups, dim = config.num_query_groups or heads, config.kv_channels
    prepare(heads, groups, dim)
    chosen = {}
    for name, piece, given in (*_elementwise(dtype), _attention_piece(heads, groups, dim)):
        ways = [_passes(piece, given, kernels) for kernels in (OURS, TORCHS)]
        of_what = f"{heads} heads, {groups} key heads, {dim} channels" if name == "attention" else str(dtype)
        chosen[name] = getattr(OURS if ours_is_faster(f"{name} of {of_what}", *ways) else TORCHS, name)
    return Kernels(**chosen)


def _elementwise(dtype: torch.dtype) -> list[tuple[str, _Piece, tuple[Tensor, ...]]]:
    """Each piece by its name, and what gets a gradient in it."""
    values, both, turned = (
        made_values(*shape).detach().to(dtype).requires_grad_()
        for shape in ((_TOKENS, 1, _SIZE), (_TOKENS, 1, 2 * _SIZE), (_TOKENS, _HEADS, _SIZE // _HEADS))
    )
    weight = made_values(_SIZE).detach().to(dtype).requires_grad_()
    angles = made_values(_TOKENS, 1, _SIZE // _HEADS // 2).detach()
    cosine, sine = angles.cos(), angles.sin()
    return [
        ("rms_norm", lambda kernels: kernels.rms_norm(values, weight, 1e-6), (values, weight)),
        ("gated_silu", lambda kernels: kernels.gated_silu(both), (both,)),
        ("rotate", lambda kernels: kernels.rotate(turned, cosine, sine), (turned,)),
    ]


def _attention_piece(heads: int, groups: int, dim: int) -> tuple[str, _Piece, tuple[Tensor, ...]]:
    packed = PackedRows.of([_TOKENS // _ROWS] * _ROWS, torch.device("cpu"))
    query, key, value = (made_values(_TOKENS, count, dim) for count in (heads, groups, groups))
    return "attention", lambda kernels: kernels.attention(query, key, value, packed, None), (query, key, value)


def _passes(piece: _Piece, given: tuple[Tensor, ...], kernels: Kernels) -> Callable[[], object]:
    """Computes a piece forward and backward."""

    def run() -> None:
        output = piece(kernels)
        torch.autograd.grad(output, given, torch.ones_like(output))

    return run
