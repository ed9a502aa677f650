"""What a layer's pieces are computed by: one function for each piece, chosen for the device by
:func:`learners.megatron.kernels.kernels_of`, so that no layer knows of devices."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from learners.megatron.layers.packed_rows import PackedRows


class Kernels(NamedTuple):
    """The functions for one kind of device, each with gradients.

    Attributes:
        rms_norm: as :func:`.elementwise.rms_norm`.
        gated_silu: as :func:`.elementwise.gated_silu`.
        rotate: as :func:`.elementwise.rotate`.
        attention: takes query [t, heads, dim], key and value [t, query groups, dim], the first two already rotated; how the rows
            lie; and the factor of the products, None for ``1 / sqrt(dim)``. Returns [t, heads * dim], attention of each token
            over its row, and over the preamble and shared prefix that the row continues.
    """

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    gated_silu: Callable[[Tensor], Tensor]
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    attention: Callable[[Tensor, Tensor, Tensor, PackedRows, float | None], Tensor]


class UsesKernels:
    """Base class of layers that compute with kernels.

    Attributes:
        kernels: set by the model once it has all its layers (:class:`learners.megatron.model.PolicyModel`).
    """

    kernels: Kernels
