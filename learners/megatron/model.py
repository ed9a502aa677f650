"""The policy on one rank: Megatron's GPT for packed rows, wrapped for data parallelism, with a distributed optimizer."""

from collections.abc import Iterator, Sequence

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.learners.megatron import optimizer_state, parallel
from asyncrl.learners.megatron.layers.kernels import Kernels, UsesKernels
from asyncrl.learners.megatron.layers.layer_spec import block_spec, gives_predicting_only, uses_transformer_engine
from asyncrl.learners.megatron.layers.log_probabilities import KEPT_BYTES, Predictions, token_log_probabilities
from asyncrl.learners.megatron.layers.packed_rows import PackedRows
from asyncrl.learners.megatron.layers.routing import choose_for
from asyncrl.learners.megatron.layers.row_moves import take_rows
from asyncrl.learners.megatron.model_config import PolicyConfig


class PolicyModel(GPTModel):
    """One pipeline stage, or one chunk of it. The last stage predicts the sampled tokens and no others.

    Args:
        config: configuration of the whole model.
        kernels: what the layers are computed by.
        chunk: number of this chunk within the stage, in the interleaved schedule; None if the stage is not divided.
    """

    post_process: bool

    def __init__(self, config: PolicyConfig, kernels: Kernels, chunk: int | None = None) -> None:
        super().__init__(
            config.transformer,
            block_spec(config.transformer, chunk),
            vocab_size=config.architecture.vocabulary,
            max_sequence_length=config.max_positions,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk),
            share_embeddings_and_output_weights=config.tied,
            position_embedding_type="rope",
            vp_stage=chunk,
        )
        self.architecture = config.architecture
        self.rotation_scale = config.rotation_scale
        for layer in self.modules():
            if isinstance(layer, UsesKernels):
                layer.kernels = kernels
        choose_for(self.modules(), config.architecture.with_experts)
        # Megatron leaves the routers' weights in host memory until they are first used.
        self.to(torch.cuda.current_device())
        self.rotary_pos_emb.inv_freq = config.inverse_frequencies.to(torch.cuda.current_device())
        for name, parameter in self.named_parameters():
            if ".mlp.experts." in name:
                # Megatron sets this only where there are several expert-parallel ranks, but it is needed in every
                # layout. Without it, `tensor_parallel` alone would sum the gradients of experts over too few of the
                # ranks that hold them. It also decides which optimizer has the experts, and so their names in a
                # checkpoint, which must not depend on the layout.
                parameter.allreduce = False

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters, and the weights that no gradient trains: the biases by which routers choose experts."""
        yield from self.named_parameters()
        for name, module in self.named_modules():
            if isinstance(module, TopKRouter) and module.expert_bias is not None:
                yield f"{name}.expert_bias", module.expert_bias

    def forward(
        self, token_ids: Tensor, packed: PackedRows, positions: Tensor, targets: Tensor, temperature: float
    ) -> Predictions | Tensor:
        """Pass one micro-batch through this stage.

        Args:
            token_ids: int64 [t].
            packed: how the rows lie in it.
            positions: int64 [n], without repetition: the places of the tokens before the sampled ones.
            targets: int64 [n], the sampled tokens.
            temperature: temperature at which they were sampled.

        Returns:
            On the last stage, log-probabilities and entropies of the sampled tokens. On the others, the hidden states
            [t, 1, hidden], divided over tensor-parallel ranks along ``t``.
        """
        embedded = self.embedding(input_ids=token_ids.unsqueeze(0), position_ids=None) if self.pre_process else None
        if embedded is not None and torch.is_grad_enabled() and not embedded.requires_grad:
            # The embedding is frozen, and a recomputed layer gets gradients only if one of its inputs requires a
            # gradient.
            embedded.requires_grad_()
        rotary = None
        rows_are_whole = not packed.prefixes and self.config.context_parallel_size == 1
        if uses_transformer_engine(self.config) and rows_are_whole and self.rotation_scale == 1:
            rotary = self.rotary_pos_emb(packed.max_seqlen_q, packed_seq=True)
        else:
            angles = self.rotary_pos_emb.get_freqs_non_repeated(packed.longest_row)
            packed.rotate_by(angles, self.config.params_dtype, self.rotation_scale)
        if gives_predicting_only(self.config):
            packed.predicting = positions
        hidden: Tensor = self.decoder(
            hidden_states=embedded, attention_mask=None, rotary_pos_emb=rotary, packed_seq_params=packed
        )
        if not self.post_process:
            return hidden
        weight = (
            self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else self.output_layer.weight
        )
        if self.config.sequence_parallel:
            # Each rank's part of the vocabulary gives a part of the gradient. The backward of the gather adds these up.
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True)
        group = parallel_state.get_tensor_model_parallel_group()
        # Who computes activations again is short of memory.
        kept = 0 if self.config.recompute_granularity else KEPT_BYTES
        states = self.states_at(hidden, packed, positions)
        return token_log_probabilities(states, weight, targets, temperature, group, kept_bytes=kept)

    def states_at(self, hidden: Tensor, packed: PackedRows, positions: Tensor) -> Tensor:
        """[n, hidden], the hidden states at ``positions``, if the last layer has not left out the others already."""
        hidden = hidden.squeeze(1)
        return hidden if packed.predicting is not None else take_rows(hidden, positions)


def build(config: PolicyConfig, kernels: Kernels, virtual_pipeline: int) -> list[PolicyModel]:
    """Build the chunks of this rank's pipeline stage, in the order in which tokens pass through them."""
    chunks = range(virtual_pipeline) if virtual_pipeline > 1 else [None]
    return [PolicyModel(config, kernels, chunk) for chunk in chunks]


def distribute(chunks: Sequence[PolicyModel], learner: LearnerConfig) -> tuple[list[DistributedDataParallel], MegatronOptimizer]:
    """Wrap chunks for data-parallel training. They must have their weights already, because the optimizer copies these
    into its fp32 master weights here.

    Returns:
        The wrapped chunks, whose gradients are reduced in fp32; and Adam, with its state divided over data-parallel
        ranks.
    """
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=True,
        overlap_grad_reduce=False,
        # With overlap, parameters would stay one step old until the next forward pass, and publishing would send old
        # ones.
        overlap_param_gather=False,
    )
    wrapped = [DistributedDataParallel(chunk.config, settings, chunk) for chunk in chunks]
    for replica in wrapped:
        # A single rank has nothing to exchange, but gloo would still copy all gradients and all weights.
        for kind in ("bucket_groups", "expert_parallel_bucket_groups"):
            groups = getattr(replica, kind)
            setattr(replica, kind, [group for group in groups if group.intra_distributed_optimizer_instance_size > 1])
    config = OptimizerConfig(
        optimizer="adam",
        lr=learner.lr,
        weight_decay=learner.weight_decay,
        clip_grad=learner.clip_grad,
        bf16=learner.dtype == "bfloat16",
        params_dtype=chunks[0].config.params_dtype,
        use_distributed_optimizer=True,
    )
    optimizer = get_megatron_optimizer(
        config,
        wrapped,
        config_overrides=get_standard_config_overrides(config),
        use_gloo_process_groups=parallel.gathers_in_host_memory(),
    )
    if torch.cuda.is_available():
        optimizer_state.fuse(optimizer)
    for group in optimizer.param_groups:
        # Megatron leaves this to its own scheduler, which is not used here. Norms and biases are not decayed.
        group["weight_decay"] = learner.weight_decay * group["wd_mult"]
    return wrapped, optimizer
