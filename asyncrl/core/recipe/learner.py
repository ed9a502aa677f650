"""Section ``learner`` of a recipe: the Megatron learner, and the adapters that it may train."""

from typing import Annotated, Literal, get_args

from msgspec import Meta

from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.core.recipe.custom import CustomScheduleConfig, LinearScheduleConfig
from asyncrl.core.recipe.placement import PlacementConfig
from asyncrl.core.recipe.section import AUTOMATIC, Count, NonNegative, Positive, Section

_EveryLayers = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_Latent = Literal["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"]


class LoraConfig(Section, frozen=True):
    """Low-rank adapters are trained, and the model's own weights stay as they are (Hu et al. 2021, arXiv:2106.09685).

    Attributes:
        rank: the rank of each adapter; its two matrices are [rank, inputs] and [outputs, rank].
        alpha: an adapter adds ``alpha / rank`` times the product of its matrices to its weight.
        targets: which of each layer's weights have an adapter, named as in Hugging Face. By default, all those of a model without
            experts and without latent attention.
        publish: what engines receive: the sums of weights and adapters (``merged``), or the adapters alone, which vLLM then
            applies beside weights that never change (``adapter``).
    """

    rank: Count = 16
    alpha: Positive = 32.0
    targets: Annotated[tuple[_EveryLayers | _Latent, ...], Meta(min_length=1)] = get_args(_EveryLayers)
    publish: Literal["merged", "adapter"] = "merged"


class ExpertsConfig(Section, frozen=True):
    """The routers of a mixture of experts. Not used by a model without experts.

    Attributes:
        replay: the routers take the experts that the engine chose when it sampled, in each forward pass of the policy and of its
            reference, and weigh them as they would their own. Without it, a token whose router is near a tie goes to other
            experts in the learner than in the engine, and has another log-probability.
        balance: what keeps the experts' loads even: nothing, a loss in addition (``aux``, Fedus et al. 2021, arXiv:2101.03961) or
            the bias by which routers choose experts (``bias``, Wang et al. 2024, arXiv:2408.15664), where the model has one.
        aux_coefficient: factor of that loss, which is 1 for each layer if its loads are even.
        bias_rate: what an optimizer step adds to the bias of an expert with less than an even load, and takes from one with more.
    """

    replay: bool = False
    balance: Literal["none", "aux", "bias"] = "none"
    aux_coefficient: Positive = 1e-3
    bias_rate: Positive = 1e-3


class LearnerConfig(Section, frozen=True):
    """The Megatron learner.

    Attributes:
        lr: peak learning rate of Adam.
        warmup_steps: training steps over which the learning rate rises linearly to ``lr``.
        min_lr_ratio: the learning rate decays linearly to this share of ``lr`` at the last training step; 1 keeps it constant.
        schedule: how the learning rate follows from the training step.
        weight_decay: decoupled weight decay.
        clip_grad: the largest gradient norm; a gradient with a larger norm is scaled down to it.
        dtype: type of the parameters in the forward pass; bfloat16 keeps fp32 master weights. ``auto`` is bfloat16 on GPUs. On
            processors with instructions for it, it is what is measured to be faster with the model's sizes, and float32 if
            ``generators.dtype`` is; on others it is float32.
        gpu: ``own``, or ``shared``: two processes of the run use one GPU, such as the learner and an engine. Then the learner
            has one rank. ``auto`` shares if there is only one GPU. Not used on CPU.
        fp8: multiply the layers' matrices in 8-bit floating point, with TransformerEngine and a current scale for each tensor:
            all in e4m3, or gradients in e5m2 (``hybrid``). Attention, norms, output layer and optimizer are not affected. Needs
            ``dtype`` bfloat16, a model without experts and GPUs of compute capability 8.9 or newer; not yet tested on one.
        micro_batch_tokens: tokens computed in one micro-batch over all context-parallel ranks; must hold the longest episode.
        tensor_parallel, pipeline_parallel, data_parallel, context_parallel: ranks along each dimension; their product is the
            number of ranks. Tensor-parallel ranks divide the sequence too, between their matrix products (sequence parallelism).
            Context-parallel ranks divide the tokens of each row, for rows too long for one.
        expert_parallel: in a mixture of experts, ranks that share out each layer's experts; each token is sent to those that
            have its experts. They are no further ranks, but those of a pipeline stage (tensor times data times context parallel),
            and ``expert_parallel`` times ``expert_tensor_parallel`` must divide their number.
        expert_tensor_parallel: ranks that divide each expert, as ``tensor_parallel`` divides all other layers.
        virtual_pipeline: model chunks that each pipeline stage holds and computes in turn (interleaved schedule), which shortens
            the time in which stages wait for each other; needs ``pipeline_parallel`` of at least 2.
        recompute: what the backward pass computes again instead of keeping it in memory: nothing, attention between its
            projections (``selective``), or whole layers (``full``, about a third more time).
        experts: what routers of a mixture of experts take from engines, and how their loads are kept even.
        lora: train low-rank adapters in place of the policy's weights, with a higher ``lr``; null trains all weights.
        placement: which nodes of a cluster the ranks go to.
        tensor_parallel_nodes: tensor-parallel ranks that divide the same layers are on ``one`` node, or may be on ``several``;
            they exchange the tokens of each layer.
    """

    lr: Positive = 1e-6
    warmup_steps: NonNegative = 0
    min_lr_ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0
    schedule: LinearScheduleConfig | CustomScheduleConfig = LinearScheduleConfig()
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    clip_grad: Positive = 1.0
    dtype: Annotated[Literal["float32", "bfloat16"], AUTOMATIC] = "float32"
    gpu: Annotated[Literal["own", "shared"], AUTOMATIC] = "own"
    fp8: Literal["none", "e4m3", "hybrid"] = "none"
    micro_batch_tokens: Annotated[Count, AUTOMATIC] = 8192
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    data_parallel: Annotated[Count, AUTOMATIC] = 1
    context_parallel: Count = 1
    expert_parallel: Count = 1
    expert_tensor_parallel: Count = 1
    virtual_pipeline: Count = 1
    recompute: Literal["none", "selective", "full"] = "none"
    experts: ExpertsConfig = ExpertsConfig()
    lora: LoraConfig | None = None
    placement: PlacementConfig = PlacementConfig()
    tensor_parallel_nodes: Literal["one", "several"] = "one"

    @property
    def layout(self) -> ParallelLayout:
        """How the ranks divide the model and the batch."""
        return ParallelLayout(
            tensor=self.tensor_parallel,
            pipeline=self.pipeline_parallel,
            data=self.data_parallel,
            context=self.context_parallel,
            expert=self.expert_parallel,
            expert_tensor=self.expert_tensor_parallel,
            virtual_pipeline=self.virtual_pipeline,
        )
