"""What a layer's pieces are computed by: one function for each piece, chosen for the device by
:func:`asyncrl.learners.megatron.kernels.kernels_of`, so that no layer knows of devices."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from asyncrl.learners.megatron.layers.packed_rows import PackedRows

Heads = Callable[[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None, float], tuple[Tensor, Tensor, Tensor]]
"""Makes queries, keys and values of what their projection gives; arguments and results are in :class:`Kernels`."""


class Kernels(NamedTuple):
    """The functions for one kind of device, each with gradients.

    Attributes:
        rms_norm: as :func:`.elementwise.rms_norm`.
        gated_silu: as :func:`.elementwise.gated_silu`.
        rotate: as :func:`.elementwise.rotate`.
        attention: takes query [t, heads, dim], key and value [t, query groups, dim], the first two already rotated; how the rows
            lie; and the factor of the products, None for ``1 / sqrt(dim)``. Returns [t, heads * dim], attention of each token
            over its row, and over the preamble and shared prefix that the row continues.
        heads: makes queries, keys and values, as ``attention`` takes them, of what their projection gives, at once; None where it
            is done by the pieces above one after another. Takes [t, query groups, heads of a group, dim], whose last two heads
            are a key and a value; cosine and sine as ``rotate`` does; the weights of the norms of queries and keys, both [dim],
            or None without such norms; and their epsilon.
    """

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    gated_silu: Callable[[Tensor], Tensor]
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    attention: Callable[[Tensor, Tensor, Tensor, PackedRows, float | None], Tensor]
    heads: Heads | None = None


class UsesKernels:
    """Base class of layers that compute with kernels.

    Attributes:
        kernels: set by the model once it has all its layers (:class:`asyncrl.learners.megatron.model.PolicyModel`).
    """

    kernels: Kernels
