"""The critic on one rank: the policy's architecture, with an output of one number, the value of a state, in place of
its output layer."""

from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from torch import Tensor

from asyncrl.learners.megatron.layers.kernels import Kernels
from asyncrl.learners.megatron.layers.packed_rows import PackedRows
from asyncrl.learners.megatron.model import PolicyModel
from asyncrl.learners.megatron.model_config import PolicyConfig


class ValueModel(PolicyModel):
    """One pipeline stage, or one chunk of it. The last stage has the value head, whole on every tensor-parallel rank.

    The head starts at zero: every value is 0, and the first advantages are plain returns.

    Args:
        config: the policy's configuration.
        kernels: what the layers are computed by.
        policy: the policy's chunk at the same place, whose weights this one starts with.
        chunk: see :class:`.model.PolicyModel`.
    """

    def __init__(self, config: PolicyConfig, kernels: Kernels, policy: PolicyModel, chunk: int | None = None) -> None:
        super().__init__(msgspec.structs.replace(config, tied=False), kernels, chunk)
        self.value_head: torch.nn.Linear | None = None
        if self.post_process:
            del self.output_layer
            # Megatron now treats this as a stage that passes its hidden states on; the decoder keeps its final norm.
            self.post_process = False
            self.value_head = torch.nn.Linear(
                config.transformer.hidden_size,
                1,
                bias=False,
                dtype=config.transformer.params_dtype,
                device=torch.cuda.current_device(),
            )
            torch.nn.init.zeros_(self.value_head.weight)
        theirs = dict(policy.weights())
        with torch.no_grad():
            for name, weight in self.weights():
                if name != "value_head.weight":
                    weight.copy_(theirs[name])

    def forward(self, token_ids: Tensor, packed: PackedRows, positions: Tensor, *rest: Any) -> Tensor:
        """Pass one micro-batch through this stage. Arguments as in :meth:`.model.PolicyModel.forward`.

        Returns:
            On the last stage, float32 [n], the value of the state in which each token was sampled; on the others,
            hidden states.
        """
        hidden = super().forward(token_ids, packed, positions, *rest)
        assert isinstance(hidden, Tensor)
        if self.value_head is None:
            return hidden
        if self.config.sequence_parallel:
            # All ranks compute the same values of the same states, so each takes its own part of the same gradient.
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        return F.linear(self.states_at(hidden, packed, positions), self.value_head.weight).squeeze(1).float()
