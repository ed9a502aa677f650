"""The registers of what the product replaces, reads or calls in Megatron and torch that they keep to themselves; see
:mod:`asyncrl.core.reach`.

What always holds: whatever is replaced is replaced in the processes of learner ranks alone.
"""

from asyncrl.core.reach import Reach

_LAYOUTS = "tests/learners/megatron/test_layouts.py::test_every_layout_has_the_loss_and_gradients_of_one_rank"
_EXPERTS = "tests/learners/megatron/test_experts.py::test_every_layout_has_the_loss_and_gradients_of_one_rank"
_CHECKPOINT = "tests/learners/megatron/test_learner_checkpoint.py::test_the_same_checkpoint_and_batches_give_the_same_bits"
_RANDOM, _MAPPINGS = "megatron.core.tensor_parallel.random", "megatron.core.tensor_parallel.mappings"
_STRATEGIES = "megatron.core.dist_checkpointing.strategies"

MEGATRON = (
    Reach(
        files=("learners/megatron/cpu/compat.py",),
        names=(
            *(f"{_RANDOM}._MODEL_PARALLEL_RNG_TRACKER_NAME", f"{_RANDOM}.CudaRNGStatesTracker"),
            *(f"{_RANDOM}._get_cuda_rng_state", f"{_RANDOM}._set_cuda_rng_state"),
        ),
        why="keep named random streams in the CPU's generator",
        device="CPU",
        test="tests/learners/megatron/test_learner_checkpoint.py::test_random_streams_go_on",
        needless="Megatron's random streams follow the device",
    ),
    Reach(
        files=("learners/megatron/cpu/compat.py",),
        names=(
            "megatron.core.transformer.moe.token_dispatcher.maybe_move_tensor_to_cpu",
            *(f"{_MAPPINGS}._gather_along_first_dim", f"{_MAPPINGS}._reduce_scatter_along_first_dim"),
        ),
        why="exchange tokens of experts by gloo, which takes neither counts in tensors nor parts of different sizes",
        device="CPU",
        test=_EXPERTS,
        needless="Megatron's token dispatchers run on gloo",
    ),
    Reach(
        files=("learners/megatron/pipeline.py",),
        names=(
            "megatron.core.pipeline_parallel.p2p_communication._p2p_ops",
            "megatron.core.pipeline_parallel.p2p_communication.P2PCommunicator._communicate_shapes",
        ),
        why="send shapes in the order of their tensors: Megatron swaps those of two stages, and gloo aborts",
        test=_LAYOUTS,
        needless="Megatron exchanges shapes in the order of tensors in the interleaved schedule",
    ),
    Reach(
        files=("learners/megatron/model.py", "learners/megatron/network.py"),
        names=(".inv_freq", ".allreduce", ".[kind]", ".finalize_model_grads_func"),
        why="take rotary frequencies from the checkpoint, sum the gradients of experts over the right ranks in every layout, "
        "copy nothing where a rank has nothing to exchange, and divide no gradient by tokens again",
        test=_EXPERTS,
        needless="Megatron has settings for each",
    ),
    Reach(
        files=(
            *("learners/megatron/layers/layer_spec.py", "learners/megatron/lora.py"),
            *("learners/megatron/layers/norm.py", "learners/megatron/layers/latent_attention.py"),
            "learners/megatron/layers/experts.py",
        ),
        names=(
            *(".core_attention", ".sequence_parallel", "torch.nn.Parameter.sequence_parallel"),
            "megatron.core.transformer.transformer_layer.TransformerLayer._forward_attention",
            "megatron.core.transformer.transformer_layer.TransformerLayer._forward_mlp",
        ),
        why="leave out tokens between attention and feed-forward block of the last layer, and mark parameters whose gradients "
        "are summed over tensor-parallel ranks",
        test=_LAYOUTS,
        needless="Megatron documents the mark, and splits the forward pass of a layer",
    ),
    Reach(
        files=(
            *("learners/megatron/layers/weight_gradients.py", "learners/megatron/layers/log_probabilities.py"),
            "asyncrl/bench/gpu/logprob.py",
        ),
        names=(
            "megatron.core.tensor_parallel.layers.fused_weight_gradient_mlp_cuda",
            "megatron.core.tensor_parallel.layers._grad_accum_fusion_available",
            ".main_grad",
        ),
        why="add gradients of weights in the products that they are, without Apex's compiled code for it",
        device="GPU",
        test="tests/learners/megatron/test_weight_gradients.py::test_gradients_added_in_products_are_those_that_are_added_afterwards",
        needless="Megatron accumulates gradients by torch's products",
    ),
    Reach(
        files=("learners/megatron/layers/routing.py",),
        names=(
            *(".router_replay", ".expert_bias", ".moe_aux_loss_coeff"),
            *(".calculate_per_token_loss", ".enable_expert_bias"),
        ),
        why="have routers take the experts that engines chose, without Megatron's lists of a process's micro-batches; change the "
        "bias by which they choose once an optimizer step; and give the auxiliary loss the batch's own denominator",
        test="tests/learners/experts/test_router_replay.py::test_gradients_are_those_of_hugging_face_with_the_same_experts",
        needless="Megatron's routers take experts with a micro-batch, and its auxiliary loss and bias have steps of their own",
    ),
    Reach(
        files=("learners/megatron/layers/compiled.py",),
        names=("torch._dynamo", "torch._dynamo.config.recompile_limit"),
        why="mark the number of tokens as varying, to compile a piece once, and compile all of a model's kinds of norms",
        device="GPU",
        test="tests/learners/megatron/test_compiled_pieces.py::test_one_model_s_kinds_of_norms_do_not_exhaust_the_compiler",
        needless="torch.compile takes the sizes that vary, and a limit, as arguments",
    ),
    Reach(
        files=("learners/megatron/state/checkpoint_reader.py", "learners/megatron/state/checkpoint_writer.py"),
        names=(_STRATEGIES,),
        why="read and write Megatron's format without running what a pickle names, without a forked writer, and beside training",
        test=_CHECKPOINT,
        needless="Megatron's format holds no pickles, and its writer is a thread",
    ),
)
"""What is reached in megatron-core 0.16 and 0.19."""

TORCH = (
    Reach(
        files=("learners/megatron/cpu/compat.py",),
        names=(
            *("torch.cuda.current_device", "torch.cuda.synchronize", "torch.cuda.current_stream", "torch.cuda.default_stream"),
            *("torch.cuda.stream", "torch.cuda.Event", "torch.cuda.Stream", "torch.compile"),
        ),
        why="let Megatron run where there is no GPU, and import it without torch's compiler",
        device="CPU",
        test="tests/learners/test_bare_machine.py::test_the_learner_does_without_what_engines_and_runs_need",
        needless="Megatron asks torch.accelerator, and compiles nothing when it is imported",
    ),
    Reach(
        files=("learners/megatron/cpu/gloo_devices.py",),
        names=(
            *(
                "torch.distributed.distributed_c10d.ProcessGroupGloo",
                "torch.distributed.distributed_c10d.ProcessGroupGloo._Options",
            ),
            *("._devices", "._threads", "._timeout"),
        ),
        why="have all groups of a rank share one device, whose thread wakes up a hundred times a second",
        device="CPU",
        test="tests/learners/megatron/test_ranks.py::test_ranks_listen_where_other_ranks_are_and_nowhere_else",
        needless="new_group takes gloo's devices",
    ),
    Reach(
        files=("learners/megatron/cpu/onednn_products.py",),
        names=("torch.ops.mkldnn._linear_pointwise",),
        why="multiply float32 matrices with oneDNN, which is faster than MKL on other processors than Intel's",
        device="CPU",
        test="tests/learners/megatron/test_onednn_products.py::test_products",
        needless="torch lets oneDNN be chosen for float32",
    ),
    Reach(
        files=("learners/megatron/state/checkpoint_reader.py", "learners/megatron/state/checkpoint_writer.py"),
        names=("torch.distributed.checkpoint._traverse.set_element", "torch.distributed.checkpoint.filesystem._write_item"),
        why="write one item of a checkpoint, and put one that was read into its place",
        test=_CHECKPOINT,
        needless="torch's checkpoint offers both by themselves",
    ),
    Reach(
        files=("asyncrl/weights/vllm/load_plan.py", "asyncrl/weights/vllm/loader_copies.py"),
        names=(
            *("torch.utils._python_dispatch.TorchDispatchMode", "torch.nn.Module._parameters", ".[_parameters]"),
            *("._cdata", "._schema"),
        ),
        why="note what vLLM's loaders copy where, and exchange parameters of a layer without a copy",
        test="tests/weights/vllm/test_load_plan.py::test_a_plan_makes_what_the_loaders_make_and_touches_nothing_before_the_exchange",
        needless="vLLM loads weights beside those in use",
    ),
    Reach(
        files=("asyncrl/weights/vllm/staged_weights.py",),
        names=("torch._foreach_copy_", "torch.nn.Module._parameters", ".[_parameters]"),
        why="copy new weights over those in use in one call, so that an engine on a GPU is paused for milliseconds",
        device="GPU",
        test="tests/gpu/test_graph_safety.py::test_publications_are_written_where_the_weights_are_that_graphs_have_seen",
        needless="torch copies lists of tensors by a public name",
    ),
)
"""What is reached in torch 2.10 and later."""
