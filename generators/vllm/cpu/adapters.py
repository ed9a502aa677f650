"""How vLLM multiplies adapters on a CPU: each with the tokens of its own requests, as one product of matrices.

vLLM's own code copies an adapter's matrices for every token before it multiplies, which makes a small model two to three times
slower. What always holds: a step has at most one product for each version in use, projection and matrix.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

_BASE = -1
"""vLLM's index of no adapter."""


class CpuAdapters(PunicaWrapperCPU):  # type: ignore[misc]
    """Replaces vLLM's wrapper of the same interface."""

    def update_metadata(self, *arguments: Any, **options: Any) -> None:
        """Note which tokens of the next step have which adapter."""
        super().update_metadata(*arguments, **options)
        of_tokens = self.token_lora_indices
        used = of_tokens.unique().tolist()
        self._rows: list[tuple[int, Tensor | None]] = [
            (index, None if len(used) == 1 else (of_tokens == index).nonzero().flatten()) for index in used if index != _BASE
        ]

    def add_lora_linear(
        self,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: tuple[Tensor, ...],
        lora_b_stacked: tuple[Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **options: Any,
    ) -> None:
        """Add what adapters contribute to the outputs of a linear layer, which may be several projections in one.

        Args:
            y: [tokens, outputs], changed in place.
            x: [tokens, inputs].
            lora_a_stacked: by projection, [adapters, 1, rank, inputs].
            lora_b_stacked: by projection, [adapters, 1, outputs of the projection, rank].
            scale: factor of the contribution.
            output_slices: by projection, its number of outputs.
        """
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        for index, rows in self._rows:
            inputs, first_output = x if rows is None else x[rows], 0
            for first, second, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
                inner, outputs = F.linear(inputs, first[index, 0]), y[:, first_output : first_output + width]
                if rows is None:
                    outputs.addmm_(inner, second[index, 0].T, alpha=scale)
                else:
                    outputs.index_add_(0, rows, F.linear(inner, second[index, 0]), alpha=scale)
                first_output += width
