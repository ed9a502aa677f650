"""Chooses what the layers of a model are computed by on this processor: piece by piece, code of our own where it is measured to
be faster, otherwise torch's operators."""

from collections.abc import Callable
from functools import cache

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from asyncrl.learners.megatron.cpu import elementwise as ours
from asyncrl.learners.megatron.cpu.attention import attention_on_cpu, prepare
from asyncrl.learners.megatron.cpu.piece_speed import made_values, ours_is_faster
from asyncrl.learners.megatron.layers import elementwise as torchs
from asyncrl.learners.megatron.layers.attention import attention_in_blocks
from asyncrl.learners.megatron.layers.kernels import Kernels
from asyncrl.learners.megatron.layers.packed_rows import PackedRows
from asyncrl.learners.megatron.transformer import PolicyTransformerConfig

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

_Piece = tuple[Callable[[Kernels], Tensor], tuple[Tensor, ...]]
"""Computes a piece once, by the one or the other; and what gets a gradient in it."""


def kernels_of_cpu(config: TransformerConfig) -> Kernels:
    """Return the kernels for a model of this configuration. Attention is in float32, whatever the model's data type."""
    heads, dtype = config.num_attention_heads, config.params_dtype
    groups, dim = config.num_query_groups or heads, config.kv_channels
    if isinstance(config, PolicyTransformerConfig) and config.latent is not None:  # each head has a key of its own
        groups, dim = heads, max(config.latent.query, config.latent.value)
    prepare(heads, groups, dim)
    pieces: dict[str, tuple[str, Callable[[], _Piece]]] = {
        "rms_norm": (str(dtype), lambda: _rms_norm(dtype)),
        "gated_silu": (str(dtype), lambda: _gated_silu(dtype)),
        "rotate": (str(dtype), lambda: _rotate(dtype)),
        "attention": (f"{heads} heads, {groups} key heads, {dim} channels", lambda: _attention_of_rows(heads, groups, dim)),
    }
    chosen = {}
    for name, (of_what, made) in pieces.items():
        made = cache(made)
        ways = [_passes(made, kernels) for kernels in (OURS, TORCHS)]
        chosen[name] = getattr(OURS if ours_is_faster(f"{name} of {of_what}", *ways) else TORCHS, name)
    return Kernels(**chosen)


def _rms_norm(dtype: torch.dtype) -> _Piece:
    values, weight = _values(dtype, _TOKENS, 1, _SIZE), _values(dtype, _SIZE)
    return lambda kernels: kernels.rms_norm(values, weight, 1e-6), (values, weight)


def _gated_silu(dtype: torch.dtype) -> _Piece:
    both = _values(dtype, _TOKENS, 1, 2 * _SIZE)
    return lambda kernels: kernels.gated_silu(both), (both,)


def _rotate(dtype: torch.dtype) -> _Piece:
    turned, angles = _values(dtype, _TOKENS, _HEADS, _SIZE // _HEADS), made_values(_TOKENS, 1, _SIZE // _HEADS // 2).detach()
    cosine, sine = angles.cos(), angles.sin()
    return lambda kernels: kernels.rotate(turned, cosine, sine), (turned,)


def _values(dtype: torch.dtype, *shape: int) -> Tensor:
    return made_values(*shape).detach().to(dtype).requires_grad_()


def _attention_of_rows(heads: int, groups: int, dim: int) -> _Piece:
    packed = PackedRows.of([_TOKENS // _ROWS] * _ROWS, torch.device("cpu"))
    query, key, value = (made_values(_TOKENS, count, dim) for count in (heads, groups, groups))
    return lambda kernels: kernels.attention(query, key, value, packed, None), (query, key, value)


def _passes(made: Callable[[], _Piece], kernels: Kernels) -> Callable[[], object]:
    """Computes a piece forward and backward. It is made when it is first computed: mostly, it has been measured before."""

    def run() -> None:
        piece, given = made()
        output = piece(kernels)
        torch.autograd.grad(output, given, torch.ones_like(output))

    return run
