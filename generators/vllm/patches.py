"""The register of what the product replaces, reads or calls in vLLM that vLLM keeps to itself; see :mod:`asyncrl.core.reach`.

What always holds: whatever is replaced is replaced in the processes of an engine and of its front end alone.
"""

from asyncrl.core.reach import Reach

_WHERE = "tests/core/test_reach.py::test_what_is_reached_is_still_where_it_was"
_ENGINE = "tests/generators/vllm/test_vllm_engine.py"
_RANKS = "tests/generators/vllm/test_data_parallel_engine.py"
_CORE = "vllm.v1.engine.core.EngineCoreProc"
_CLIENT = "vllm.AsyncLLMEngine.engine_core"
_SERVING = "vllm.entrypoints.openai"
_SHM = "vllm.distributed.device_communicators.shm_broadcast"

REACHES = (
    Reach(
        files=("generators/vllm/engine.py", "generators/vllm/engine_ranks.py"),
        names=("vllm.v1.engine.exceptions.EngineDeadError", "vllm.v1.engine.exceptions.EngineGenerateError"),
        why="tell the death of an engine from other errors",
        test=f"{_RANKS}::test_the_engine_ends_with_any_of_its_ranks",
        needless="vLLM exports its errors beside AsyncLLMEngine",
    ),
    Reach(
        files=("generators/vllm/engine_ranks.py",),
        names=(f"{_CLIENT}._call_utility_async", f"{_CLIENT}._ensure_stats_update_task", f"{_CLIENT}.resources"),
        why="call a method in the process of each data-parallel rank, and notice that a rank or the coordinator died meanwhile; "
        "collective_rpc reaches workers alone, and waits for ever",
        test=f"{_RANKS}::test_all_ranks_change_versions_together",
        needless="vLLM offers calls of the engine's process, rank by rank, that end with it",
    ),
    Reach(
        files=("generators/vllm/request_settings.py",),
        names=("vllm.v1.engine.input_processor.InputProcessor",),
        why="have vLLM check and complete sampling parameters once, not with each turn",
        test=f"{_ENGINE}::test_log_probabilities_are_of_the_distribution_that_was_sampled",
        needless="vLLM takes parameters that it has completed before",
    ),
    Reach(
        files=("generators/vllm/turn_requests.py", "generators/vllm/turn_batches.py"),
        names=(
            *("vllm.v1.engine.EngineCoreRequest", "vllm.v1.engine.EngineCoreRequestType", "vllm.v1.engine.EngineCoreOutput"),
            *("vllm.v1.engine.FinishReason", _CORE, f"{_CORE}._handle_request_preproc_error", f"{_CLIENT}._send_input"),
            *("vllm.AsyncLLMEngine._run_output_handler", "vllm.AsyncLLMEngine.output_processor.process_outputs"),
            "vllm.AsyncLLMEngine.output_processor.propagate_error",
        ),
        why="send the requests of many turns in one message, and read their answers without the objects that vLLM's front end "
        "makes for each; these took a third of its process's time",
        test="tests/generators/vllm/test_turn_requests.py::test_a_turn_is_read_as_vllm_reads_it",
        needless="vLLM takes requests in batches, and gives tokens without text",
    ),
    Reach(
        files=("generators/vllm/held_outputs.py",),
        names=(
            *("vllm.v1.engine.EngineCoreOutput", "vllm.v1.engine.EngineCoreOutputs", "vllm.v1.outputs.LogprobsLists"),
            *(_CORE, f"{_CORE}.step_fn", ".new_token_ids", ".prefill_stats", ".new_logprobs"),
        ),
        why="send what was sampled for a request once it is over: vLLM sends a message after each step, even to those who want "
        "the final output alone",
        test="tests/generators/vllm/test_held_outputs.py::test_requests_end_with_the_same_tokens_log_probabilities_and_versions",
        needless="vLLM's engine process keeps outputs of RequestOutputKind.FINAL_ONLY to itself",
    ),
    Reach(
        files=("generators/vllm/text_stops.py",),
        names=(
            *(_CORE, "vllm.v1.core.sched.scheduler.check_stop", "vllm.v1.request.RequestStatus"),
            *("vllm.v1.request.Request", "vllm.v1.request.Request.status"),
            "vllm.v1.core.sched.scheduler",
        ),
        why="end a turn at a text with the token that completes it; vLLM's front end, which looks for texts, sees a turn once "
        "it is over",
        test=f"{_ENGINE}::test_a_turn_ends_at_a_text_with_the_tokens_that_it_has_without",
        needless="vLLM's engine process stops at texts",
    ),
    Reach(
        files=("generators/vllm/engine_steps.py", "generators/vllm/engine_load.py"),
        names=(
            *(_CORE, f"{_CORE}.[_ATTRIBUTE]", f"{_CORE}.scheduler.schedule", f"{_CORE}.step_fn"),
            *("vllm.v1.core.sched.output.SchedulerOutput", ".model_executor"),
        ),
        why="measure requests, cache, processor time, and how much of the steps' time went into prompts",
        test=f"{_ENGINE}::test_the_load_of_an_engine",
        needless="vLLM's statistics say all of it, by engine and at any time",
    ),
    Reach(
        files=("generators/vllm/engine_load.py", "asyncrl/weights/vllm/engine_weights.py"),
        names=(
            *(_CORE, f"{_CORE}.[REPORT_LOAD]", f"{_CORE}.[HOLD_OUTPUTS]", f"{_CORE}.[ADD_TURNS]", f"{_CORE}.[STOP_AT_TEXTS]"),
            *(f"{_CORE}.[PREPARE]", f"{_CORE}.[LOAD]"),
        ),
        why="give the engine's process methods that the front end calls there",
        test=f"{_ENGINE}::test_weights_are_made_ready_before_the_pause",
        needless="vLLM lets plug-ins add calls of the engine's process, as worker_extension_cls does of workers",
    ),
    Reach(
        files=("generators/vllm/coordinator_process.py",),
        names=(
            "vllm.v1.engine.coordinator",
            "vllm.v1.engine.coordinator.DPCoordinatorProc.run_coordinator",
        ),
        why="end the coordinator of data-parallel ranks with the generator, also if that is killed",
        test=_WHERE,
        needless="vLLM loads plug-ins in its coordinator, or ends it with its parent",
    ),
    Reach(
        files=("generators/vllm/owned_queues.py",),
        names=(_SHM, f"{_SHM}.shared_memory"),
        why="give queues in shared memory a name that says whose they are, so that those of a killed engine are removed",
        test="tests/generators/vllm/test_owned_queues.py::test_a_queue_of_a_killed_engine_is_removed_by_the_next_launch",
        needless="vLLM makes memory without a name, or lets it be named",
    ),
    Reach(
        files=("generators/vllm/vllm_parsers.py", "generators/vllm/engine_arguments.py"),
        names=(
            *("vllm.tool_parsers._TOOL_PARSERS_TO_REGISTER", "vllm.reasoning._REASONING_PARSERS_TO_REGISTER"),
            "vllm.engine.arg_utils.AsyncEngineArgs",
        ),
        why="know the names of parsers and engine arguments from vLLM's source, because to import vLLM takes ten seconds",
        test="tests/generators/vllm/test_engine_arguments.py::test_a_wrong_name_is_refused_with_what_would_be_right",
        needless="vLLM lists them without importing torch",
    ),
    Reach(
        files=("generators/gateway/serving.py",),
        names=(
            *("vllm.renderers.online_renderer.OnlineRenderer.preprocess_chat", ".kv_transfer_params"),
            *("vllm.engine.protocol.EngineClient.generate", "vllm.tokenizers.hf.get_cached_tokenizer"),
            *(f"{_SERVING}.models.serving.OpenAIServingModels.model_name", f"{_SERVING}.models.serving.OpenAIServingModels"),
            *(f"{_SERVING}.chat_completion.serving.OpenAIServingChat", f"{_SERVING}.responses.serving.OpenAIServingResponses"),
            "vllm.entrypoints.anthropic.serving.AnthropicServingMessages",
            "vllm.entrypoints.scale_out.token_in_token_out.serving.ServingTokens",
        ),
        why="answer in the protocols of OpenAI and Anthropic, and in token ids, by vLLM's serving classes, with the token ids of "
        "an episode in place of those that a template writes, and a turn of its sampler in place of the engine's",
        test="tests/generators/gateway/test_seams.py::test_vllm_is_reached_into_where_it_was",
        needless="vLLM serves its protocols over an engine and a renderer of one's own",
    ),
    Reach(
        files=("asyncrl/weights/vllm/publication_calls.py",),
        names=(_CORE, "vllm.v1.engine.EngineCoreRequestType"),
        why="pause, load and go on in one call between two steps, and wake the engine's loop afterwards",
        test="tests/weights/vllm/test_publication_calls.py::test_the_engine_is_paused_loads_and_looks_for_work_again",
        needless="vLLM's pause, update and resume are one call of the engine's process",
    ),
    Reach(
        files=("asyncrl/weights/vllm/engine_weights.py",),
        names=("vllm.model_executor.model_loader.reload", ".moe_kernel"),
        why="reload a model layer by layer, see which layers nothing was loaded into, and have experts packed anew",
        test="tests/weights/nccl/test_broadcast_to_engine.py::"
        "test_an_engine_takes_what_ranks_broadcast_in_the_pause_and_beside_the_weights_in_use",
        needless="vLLM's weight transfer says what it has not loaded, and packs experts again",
    ),
    Reach(
        files=("asyncrl/weights/vllm/load_plan.py",),
        names=(
            *("vllm.model_executor.layers.linear.UnquantizedLinearMethod", "vllm.model_executor.layers.quantization.base_config"),
            "vllm.model_executor.layers.vocab_parallel_embedding.UnquantizedEmbeddingMethod",
            "vllm.model_executor.layers.fused_moe",
            "vllm.model_executor.model_loader.reload",
        ),
        why="make a model's new parameters beside those in use, so that the pause is only for exchanging them",
        test="tests/weights/vllm/test_load_plan.py::test_a_plan_makes_what_the_loaders_make_and_touches_nothing_before_the_exchange",
        needless="vLLM loads weights beside those in use",
    ),
    Reach(
        files=("asyncrl/weights/vllm/derived_weights.py",),
        names=(
            "vllm.model_executor.layers.quantization.base_config",
            "vllm.model_executor.layers.attention.is_deferred_attention_layer",
            "vllm.model_executor.model_loader.reload",
        ),
        why="know which weights vLLM makes of those that it loads, and that it makes them anew",
        test="tests/gpu/test_graph_safety.py::test_weights_that_vllm_makes_of_others_have_no_plan_and_are_made_anew",
        needless="vLLM's weight transfer says what it has made",
    ),
    Reach(
        files=("asyncrl/weights/vllm/adapter_slots.py",),
        names=(
            *("vllm.lora.model_manager.LoRAModelManager", "vllm.lora.lora_model.LoRAModel", "vllm.lora.peft_helper.PEFTHelper"),
        ),
        why="write adapters of a new version from memory into a buffer that no request uses, and name it later",
        test="tests/generators/vllm/test_adapter_engine.py::test_each_episode_is_sampled_by_the_version_it_began_with",
        needless="vLLM adds adapters from tensors, beside requests, and replaces one in a step",
    ),
    Reach(
        files=("asyncrl/weights/vllm/rounding_log.py",),
        names=("vllm.model_executor.models.utils",),
        why="say once that weights are rounded to the engine's precision, where vLLM warns of each tensor of each version",
        test="tests/weights/vllm/test_rounding_log.py::test_a_warning_of_vllms_loader_is_explained_and_then_silent",
        needless="vLLM warns once",
    ),
    Reach(
        files=("asyncrl/weights/nccl/collective.py",),
        names=(
            "vllm.distributed.device_communicators.pynccl.PyNcclCommunicator",
            "vllm.distributed.device_communicators.pynccl_wrapper.NCCLLibrary",
        ),
        why="broadcast with vLLM's binding of NCCL, which can end a broadcast that hangs",
        device="GPU",
        test=_WHERE,
        needless="torch's NCCL groups join processes that were started apart",
    ),
    Reach(
        files=("generators/vllm/cpu/model_inspection.py",),
        names=("vllm.model_executor.models.registry", "vllm.model_executor.models.registry._run_in_subprocess"),
        why="look at a model's class in this process: the one that vLLM starts for it fails beside packages that are hidden here",
        device="CPU",
        test="tests/generators/vllm/cpu/test_model_inspection.py::test_a_model_is_looked_at_beside_a_torchvision_for_gpus",
        needless="vLLM starts it on GPUs alone",
    ),
    Reach(
        files=("generators/vllm/cpu/worker.py",),
        names=(
            *("vllm.v1.worker.cpu_worker.CPUWorker", "vllm.v1.executor.uniproc_executor.UniProcExecutor", "vllm.ir"),
            *("torch.ops._C", "VLLM_DIST_IDENT"),
        ),
        why="set the number of threads and the priority, keep a model that is not divided in one process, use vLLM's C++ norms "
        "on a CPU, and remove the names of the memory that workers exchange tensors through",
        device="CPU",
        test=f"{_ENGINE}::test_log_probabilities_are_of_the_distribution_that_was_sampled",
        needless="vLLM has settings for threads and executor on a CPU, and uses its norms there",
    ),
    Reach(
        files=("generators/vllm/cpu/adapters.py", "generators/vllm/cpu/worker.py"),
        names=(
            *("vllm.lora.punica_wrapper.punica_cpu.PunicaWrapperCPU", "vllm.platforms.cpu.CpuPlatform"),
            "vllm.platforms.cpu.CpuPlatform.get_punica_wrapper",
        ),
        why="multiply adapters by request, not by token, which makes a small model two to three times faster",
        device="CPU",
        test="tests/generators/vllm/cpu/test_cpu_adapters.py::test_each_token_gets_what_its_own_adapter_adds",
        needless="vLLM's products of adapters on a CPU copy no matrices for each token",
    ),
    Reach(
        files=("generators/vllm/cpu/products.py",),
        names=(
            *("vllm.model_executor.layers.utils", "vllm.model_executor.layers.utils.check_cpu_sgl_kernel"),
            "vllm.model_executor.layers.utils._CPU_SGL_GEMM_MAX_WEIGHT_BYTES",
        ),
        why="multiply by small weights with vLLM's kernels that make no code for each number of tokens",
        device="CPU",
        test="tests/generators/vllm/cpu/test_cpu_products.py::test_any_number_of_tokens_gets_the_product_rounded_to_bfloat16",
        needless="vLLM takes these kernels without AMX too",
    ),
    Reach(
        files=("generators/vllm/cpu/rotation.py",),
        names=(
            "vllm.model_executor.layers.rotary_embedding.base.RotaryEmbedding",
            "vllm.model_executor.layers.rotary_embedding.base.RotaryEmbedding.forward_cpu",
        ),
        why="rotate the queries of latent attention, whose heads have a dimension of their own: vLLM's kernel for the CPU "
        "rotates some of the heads, each by the angle of another token",
        device="CPU",
        test="tests/generators/vllm/cpu/test_cpu_rotation.py::"
        "test_queries_and_the_key_of_latent_attention_are_those_of_hugging_face",
        needless="vLLM's kernel for the CPU reads the stride of heads, as the one for GPUs does",
    ),
    Reach(
        files=("generators/vllm/cpu/experts.py",),
        names=(
            "vllm.model_executor.layers.fused_moe.experts.cpu_moe.CPUUnquantizedExperts",
            "vllm.model_executor.layers.fused_moe.experts.cpu_moe.CPUUnquantizedExperts.apply",
        ),
        why="let a worker have some of the experts: vLLM's kernel reads beyond the end of what it has",
        device="CPU",
        test=f"{_RANKS}::test_episodes_in_both_ranks_sample_what_the_model_says",
        needless="vLLM's CPU kernel uses the map of experts",
    ),
    Reach(
        files=("generators/vllm/cpu/token_exchange.py",),
        names=(
            "vllm.distributed.device_communicators.cpu_communicator.CpuCommunicator",
            "vllm.distributed.device_communicators.cpu_communicator.CpuCommunicator.all_gatherv",
            "vllm.distributed.device_communicators.cpu_communicator.CpuCommunicator.reduce_scatterv",
        ),
        why="let data-parallel ranks exchange tokens for their experts, which vLLM can on GPUs alone",
        device="CPU",
        test=f"{_RANKS}::test_episodes_in_both_ranks_sample_what_the_model_says",
        needless="vLLM's communication on a CPU has both operations",
    ),
    Reach(
        files=("generators/vllm/cpu/engine_queues.py",),
        names=(
            *(f"{_SHM}.MessageQueue", f"{_SHM}.MessageQueue.wait_until_ready", ".is_creator"),
            "vllm.v1.executor.multiproc_executor.MultiprocExecutor",
        ),
        why="take the name from each queue in shared memory once it is ready, so that the kernel frees it with its processes",
        device="CPU",
        test="tests/generators/vllm/cpu/test_engine_queues.py::test_a_queue_that_is_ready_has_no_name_and_goes_on",
        needless="vLLM makes memory without a name",
    ),
    Reach(
        files=("generators/vllm/engine_follower.py",),
        names=(
            *("vllm.v1.executor.multiproc_executor", "vllm.v1.executor.multiproc_executor.MultiprocExecutor"),
            "vllm.v1.executor.multiproc_executor.MultiprocExecutor.start_worker_monitor",
        ),
        why="start the workers of an engine on a further node of it, as `vllm serve --headless` does, which is a command alone",
        test=_WHERE,
        needless="vLLM starts them in the process of the caller",
    ),
    Reach(
        files=("generators/vllm/cpu/engine_process.py", "generators/vllm/cpu/forked_workers.py"),
        names=(
            *("vllm.v1.engine.core", "vllm.v1.worker.cpu_worker", "vllm.v1.engine.coordinator", "vllm.v1.engine.utils"),
            *("vllm.v1.engine.utils.get_mp_context", "vllm.v1.engine.coordinator.get_mp_context", ".[get_mp_context]"),
            "vllm.v1.executor.multiproc_executor",
            "vllm.v1.executor.multiproc_executor.get_mp_context",
        ),
        why="fork the engine's processes from one that has imported vLLM while the generator did; each would import it again",
        device="CPU",
        test=_WHERE,
        needless="VLLM_WORKER_MULTIPROC_METHOD takes forkserver",
    ),
    Reach(
        files=("generators/vllm/cpu/returned_experts.py", "generators/vllm/cpu/worker.py"),
        names=(
            *("vllm.v1.core.sched.output.SchedulerOutput", "vllm.v1.kv_cache_interface.KVCacheConfig"),
            *("vllm.v1.outputs.ModelRunnerOutput", "vllm.v1.outputs.ModelRunnerOutput.aux_output_connector_output"),
            *(".enable_return_routed_experts", "vllm.config.VllmConfig._verify_aux_output_compatibility"),
        ),
        why="have an engine on a CPU say which experts it chose: the model runner that hands them on needs Triton",
        device="CPU",
        test="tests/generators/vllm/test_returned_experts.py::test_each_token_has_the_experts_that_the_model_chooses",
        needless="vLLM's newer model runner runs on CPUs, or the older one hands on what routers chose",
    ),
    Reach(
        files=("generators/vllm/turn_batches.py", "generators/vllm/held_outputs.py"),
        names=(".routed_experts_prompt_start", ".routed_experts"),
        why="ask for the experts of those tokens alone whose experts are not known yet, and hold them back with the tokens",
        test="tests/generators/vllm/test_returned_experts.py::test_each_token_has_the_experts_that_the_model_chooses",
        needless="vLLM takes requests in batches, and keeps outputs of RequestOutputKind.FINAL_ONLY to itself",
    ),
)
"""What is reached in vLLM 0.32."""
