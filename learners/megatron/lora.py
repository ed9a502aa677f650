"""Low-rank adapters beside a frozen model (Hu et al. 2021, arXiv:2106.09685): ``W x`` becomes
``W x + alpha / rank * B (A x)``.

What always holds: each adapter belongs to one Hugging Face projection, although Megatron keeps several projections in
one matrix. Nothing writes to the model's own weights: the sum of weights and adapters is computed when they are
published. The initial values of an adapter depend only on its name and the seed, in every layout. There is no dropout,
because the policy that is trained must be the one that sampled.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.mappings import (
    gather_from_sequence_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from megatron.core.utils import make_sharded_tensor_for_checkpoint, make_tp_sharded_tensor_for_checkpoint
from torch import Tensor

from asyncrl.core.adapters import PEFT_PREFIX
from asyncrl.core.publication import Shard
from asyncrl.core.recipe.learner import LoraConfig
from asyncrl.learners.megatron import placement
from asyncrl.learners.megatron.layers.elementwise import rms_norm
from asyncrl.learners.megatron.model import PolicyModel
from asyncrl.learners.rank import RankSpec

_PROJECTIONS = {
    "self_attention.linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "self_attention.linear_q_proj": ("q_proj",),
    "self_attention.linear_q_down_proj": ("q_a_proj",),
    "self_attention.linear_q_up_proj": ("q_b_proj",),
    "self_attention.linear_kv_down_proj": ("kv_a_proj_with_mqa",),
    "self_attention.linear_kv_up_proj": ("kv_b_proj",),
    "self_attention.linear_proj": ("o_proj",),
    "mlp.linear_fc1": ("gate_proj", "up_proj"),
    "mlp.linear_fc2": ("down_proj",),
}
"""The projections in each of Megatron's linear layers, of which a layer has some."""


class Adapter(torch.nn.Module):
    """The low-rank weights of one projection.

    Attributes:
        name: name of the projection in Hugging Face's model.
        rows: int64 [n], where the projection's outputs lie among this rank's outputs of the linear layer.
        divided: name of the matrix that tensor-parallel ranks divide, as they divide the weight; each rank has the
            other one whole. Empty if they do not divide the weight.
        lora_A: [rank, inputs]; if it is divided, this rank's columns.
        lora_B: [outputs, rank]; if it is divided, this rank's rows. It starts at zero.

    Args:
        name: see the attribute.
        part: which of this rank's outputs, by number, are the projection's.
        inputs: number of this rank's inputs of the linear layer.
        settings: the recipe's settings.
        config: the model's configuration.
        spec: the place of this rank.
        seed: the run's seed.
    """

    lora_A: torch.nn.Parameter
    lora_B: torch.nn.Parameter

    def __init__(
        self,
        name: str,
        part: placement.TensorPart,
        inputs: int,
        settings: LoraConfig,
        config: TransformerConfig,
        spec: RankSpec,
        seed: int,
    ) -> None:
        super().__init__()
        self.name, self.rows = name, part.local.flatten().to(torch.cuda.current_device())
        self.divided = {0: "lora_B", 1: "lora_A", None: ""}[part.split]
        begins = torch.zeros(len(self.rows), settings.rank)
        first = _first_factor(
            f"{seed} {name}", settings.rank, inputs * spec.layout.tensor if self.divided == "lora_A" else inputs
        )
        if self.divided == "lora_A":
            first = first.chunk(spec.layout.tensor, 1)[spec.tensor_rank]
        for matrix, values in (("lora_A", first), ("lora_B", begins)):
            values = values.to(torch.cuda.current_device(), config.params_dtype, copy=True).contiguous()
            parameter: Any = torch.nn.Parameter(values)
            if matrix == self.divided:
                set_tensor_model_parallel_attributes(parameter, is_parallel=True, dim=self.axis, stride=1)
            else:
                # Each rank multiplies its own part of the sequence by this matrix, so Megatron must sum the gradients.
                parameter.sequence_parallel = config.sequence_parallel
            self.register_parameter(matrix, parameter)

    @property
    def axis(self) -> int:
        """The dimension along which the divided matrix is divided."""
        return 0 if self.divided == "lora_B" else 1


class Adapters(torch.nn.Module):
    """The adapters beside one of Megatron's linear layers.

    Attributes:
        enabled: whether the adapters contribute to the layer's output.
        members: the adapters, all divided in the same way.

    Args:
        adapters: the adapters by projection.
        outputs: number of this rank's outputs of the linear layer.
        scale: factor of the adapters' contribution.
    """

    def __init__(self, adapters: dict[str, Adapter], outputs: int, scale: float) -> None:
        super().__init__()
        self.adapters = torch.nn.ModuleDict(adapters)
        self.members = list(adapters.values())
        self.enabled = True
        self._outputs, self._scale = outputs, scale

    def forward(self, values: Tensor) -> Tensor:
        """Compute what the adapters add to the layer's outputs.

        Args:
            values: [t, 1, inputs], the layer's inputs; this rank's part of the sequence unless the inputs are divided.

        Returns:
            [t, 1, outputs]; this rank's part of the sequence unless the outputs are divided.
        """
        members = self.members
        inner = F.linear(values, torch.cat([member.lora_A for member in members]))
        if members[0].divided == "lora_B":
            inner = gather_from_sequence_parallel_region(inner)
        elif members[0].divided == "lora_A":
            inner = reduce_scatter_to_sequence_parallel_region(inner)
        rank = len(members[0].lora_A)
        outer = inner.new_zeros(self._outputs, rank * len(members))
        for number, member in enumerate(members):
            outer[member.rows, number * rank : (number + 1) * rank] = member.lora_B
        return F.linear(inner * self._scale, outer)


class LowRank:
    """The adapters of all chunks on this rank. Construction freezes the chunks' own weights, which must be loaded
    already.

    Args:
        chunks: the chunks of this rank's pipeline stage.
        spec: the place of this rank.
        settings: the recipe's settings.
        seed: the run's seed.
    """

    def __init__(self, chunks: Sequence[PolicyModel], spec: RankSpec, settings: LoraConfig, seed: int) -> None:
        self._spec, self._settings = spec, settings
        self._scale = settings.alpha / settings.rank
        self._beside: list[Adapters] = []
        for chunk in chunks:
            chunk.requires_grad_(requires_grad=False)
            first_layer = get_transformer_layer_offset(chunk.config, chunk.vp_stage)
            for number, layer in enumerate(chunk.decoder.layers):
                there = dict(layer.named_modules())
                for name, projections in _PROJECTIONS.items():
                    if name in there and not set(settings.targets).isdisjoint(projections):
                        self._add(there[name], name, f"model.layers.{number + first_layer}.", chunk.config, seed)
        self._by_projection = {adapter.name: adapter for beside in self._beside for adapter in beside.members}

    @property
    def weights(self) -> int:
        """Number of weights in the adapters of the whole model."""
        mine = sum(
            values.numel() * (self._spec.layout.tensor if matrix == adapter.divided else 1)
            for adapter in self._by_projection.values()
            for matrix, values in adapter.named_parameters()
        )
        return mine * self._spec.layout.pipeline

    @property
    def description(self) -> str:
        """A description of everything that two runs must have in common so that one can load the other's adapters."""
        return f"rank {self._settings.rank}, alpha {self._settings.alpha:g}, {' '.join(sorted(set(self._settings.targets)))}"

    def merged(self, base: Iterable[Shard]) -> Iterator[Shard]:
        """Yield this rank's rectangles of the frozen weights, each plus what its adapter adds, summed in float32."""
        for shard in base:
            adapter = self._by_projection.get(shard.name.removesuffix(".weight"))
            yield shard if adapter is None else msgspec.structs.replace(shard, tensor=self._sum(shard.tensor, adapter))

    def shards(self) -> Iterator[Shard]:
        """Yield the adapters' own tensors under PEFT's names; over all ranks, every element exactly once."""
        for name, adapter in self._by_projection.items():
            for matrix in ("lora_A", "lora_B"):
                values = getattr(adapter, matrix).detach()
                shape, start = list(values.shape), [0, 0]
                if matrix == adapter.divided:
                    shape[adapter.axis] *= self._spec.layout.tensor
                    start[adapter.axis] = values.shape[adapter.axis] * self._spec.tensor_rank
                elif self._spec.tensor_rank:
                    continue
                if self._spec.is_first_replica:
                    yield Shard(f"{PEFT_PREFIX}{name}.{matrix}.weight", tuple(shape), tuple(start), values)

    def peft_config(self, base: str) -> dict[str, Any]:
        """The content of PEFT's ``adapter_config.json``.

        Args:
            base: where the frozen weights are.
        """
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self._settings.rank,
            "lora_alpha": self._settings.alpha,
            "lora_dropout": 0.0,
            "target_modules": sorted(set(self._settings.targets)),
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
        }

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context manager within which adapters are off, so that the model is the frozen one: the reference policy."""
        for beside in self._beside:
            beside.enabled = False
        try:
            yield
        finally:
            for beside in self._beside:
                beside.enabled = True

    def _add(self, linear: torch.nn.Module, name: str, prefix: str, config: TransformerConfig, seed: int) -> None:
        outputs, inputs = linear.get_parameter("weight").shape
        adapters: dict[str, Adapter] = {}
        for part in placement.layer_parts(f"{name}.weight", torch.arange(outputs).unsqueeze(1), config):
            projection = part.name.removesuffix(".weight")
            target = projection.rsplit(".", 1)[-1]
            if target in self._settings.targets:
                adapters[target] = Adapter(prefix + projection, part, inputs, self._settings, config, self._spec, seed)
        beside = Adapters(adapters, outputs, self._scale)
        linear.add_module(placement.ADAPTERS, beside)
        linear.register_forward_hook(_with_adapters)
        self._beside.append(beside)

    @torch.no_grad()
    def _sum(self, weight: Tensor, adapter: Adapter) -> Tensor:
        return torch.addmm(weight.float(), adapter.lora_B.float(), adapter.lora_A.float(), alpha=self._scale).to(weight.dtype)


def trained_state(chunk: PolicyModel) -> ShardedStateDict:
    """What a checkpoint holds of a chunk with adapters: only the adapters. Empty for a chunk without adapters."""
    tensor = parallel_state.get_tensor_model_parallel_group()
    data = parallel_state.get_data_parallel_group(with_context_parallel=True)
    state: ShardedStateDict = {}
    for place, adapter in chunk.named_modules():
        if isinstance(adapter, Adapter):
            for matrix, values in adapter.named_parameters():
                key, groups = f"{adapter.name}.{matrix}", {"tp_group": tensor, "dp_cp_group": data}
                state[f"{place}.{matrix}"] = (
                    make_tp_sharded_tensor_for_checkpoint(values, key, adapter.axis, **groups)
                    if matrix == adapter.divided
                    else make_sharded_tensor_for_checkpoint(values, key, **groups)
                )
    return state


def bit_sum(chunks: Sequence[PolicyModel], spec: RankSpec) -> int:
    """Sum the bits of the whole model's weights: the result is the same in every layout, and two models hardly ever
    have the same. Collective."""
    total = torch.zeros((), dtype=torch.int64, device=torch.cuda.current_device())
    for piece in placement.placed(chunks, spec):
        if piece.published:
            bits = piece.local.contiguous().view(torch.int16 if piece.local.element_size() == 2 else torch.int32)
            total += bits.sum(dtype=torch.int64)
    dist.all_reduce(total)
    return int(total)


_Output = Tensor | tuple[Tensor, Tensor | None]
"""What a linear layer returns: values or, if it is one of Megatron's, values and a bias that is added later."""


def _with_adapters(linear: Any, inputs: tuple[Tensor], output: _Output) -> _Output:
    """Forward hook of a linear layer: add the adapters' contribution to the output."""
    beside = linear.get_submodule(placement.ADAPTERS)
    if not beside.enabled:
        return output
    (values,) = inputs
    if hasattr(linear, "layer_norm_weight"):
        # This is TransformerEngine's layer, which applies the norm to its inputs itself.
        values = rms_norm(values, linear.layer_norm_weight, linear.config.layernorm_epsilon)
    added = beside(values)
    return output + added if isinstance(output, Tensor) else (output[0] + added, output[1])


def _first_factor(name: str, rank: int, inputs: int) -> Tensor:
    """float32 [rank, inputs], initial values of A: uniform as in He et al. 2015 (arXiv:1502.01852) with slope sqrt(5),
    as in PEFT."""
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True))
    first = torch.empty(rank, inputs)
    return torch.nn.init.kaiming_uniform_(first, a=math.sqrt(5), generator=generator)
