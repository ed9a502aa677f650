"""The plan of slices: what vLLM's own loaders would copy, from what Megatron's ranks publish, each element exactly once."""

import copy
import math
from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    DeepseekV3Config,
    Glm4MoeConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from vllm_models import vllm_model

from asyncrl.core.architectures.architecture import EMBEDDING, OUTPUT, Architecture, ExpertNames, LatentSizes
from asyncrl.core.architectures.known import KNOWN
from asyncrl.core.errors import WeightMismatch
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.core.publication import Shard
from asyncrl.core.rectangle import Rectangle
from asyncrl.learners.held_weights import held_weights
from asyncrl.learners.rank import RankPlace
from asyncrl.weights.shm.shared_tensors import SharedMemory
from asyncrl.weights.vllm.engine_shards import EngineLayout, Target, check_engine, padding, parameters, targets
from asyncrl.weights.vllm.load_plan import LoadPlan
from asyncrl.weights.vllm.loader_copies import Copy, Padding, Recorder
from asyncrl.weights.vllm.slice_plan import merges, moved_elements, plan_slices
from asyncrl.weights.vllm.slice_reader import SliceReader

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 321,
    "intermediate_size": 96,
    "dtype": "float32",
}


def named(architecture):
    return SIZES | {"architectures": [architecture]}


OF_SIZES = {
    "hidden_size": 64,
    "heads": 4,
    "key_value_heads": 2,
    "head_size": 16,
    "intermediate_size": 96,
    "vocabulary": 321,
    "tied": False,
    "biases": False,
    "head_norms": False,
    "with_experts": (False, False),
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
MODELS = {
    "qwen3": (Qwen3Config(**named("Qwen3ForCausalLM"), head_dim=16), Architecture(**OF_SIZES | {"head_norms": True})),
    "qwen2": (Qwen2Config(**named("Qwen2ForCausalLM")), Architecture(**OF_SIZES | {"biases": True})),
    "llama-tied": (
        LlamaConfig(**named("LlamaForCausalLM"), tie_word_embeddings=True),
        Architecture(**OF_SIZES | {"tied": True}),
    ),
    "qwen3-moe": (
        Qwen3MoeConfig(**named("Qwen3MoeForCausalLM"), **EXPERTS, head_dim=16, mlp_only_layers=[0]),
        Architecture(**OF_SIZES | {"head_norms": True, "with_experts": (False, True), "experts": 4, "expert_size": 32}),
    ),
}
MODELS |= {
    "mixtral": (
        MixtralConfig(**named("MixtralForCausalLM"), num_local_experts=4, num_experts_per_tok=2),
        Architecture(
            **OF_SIZES
            | {
                "with_experts": (True, True),
                "experts": 4,
                "expert_size": 96,
                "expert_names": KNOWN["MixtralForCausalLM"].experts.names,
            }
        ),
    ),
    "glm4-moe": (
        Glm4MoeConfig(
            **named("Glm4MoeForCausalLM"),
            **{"head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
            **{"n_shared_experts": 2, "first_k_dense_replace": 1, "attention_bias": True, "use_qk_norm": True},
            num_mtp_layers=0,
        ),
        Architecture(
            **OF_SIZES
            | {
                **{"biases": True, "head_norms": True, "with_experts": (False, True)},
                **{"experts": 4, "expert_size": 32, "shared_size": 64},
                "expert_names": KNOWN["Glm4MoeForCausalLM"].experts.names,
            }
        ),
    ),
    "deepseek-v3": (
        DeepseekV3Config(
            **named("DeepseekV3ForCausalLM") | {"num_key_value_heads": 4},
            **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 2, "topk_group": 1},
            **{"n_shared_experts": 2, "first_k_dense_replace": 1, "num_mtp_layers": 0, "topk_method": "noaux_tc"},
            **{"q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16},
        ),
        Architecture(
            **OF_SIZES
            | {
                **{"key_value_heads": 4, "with_experts": (False, True), "experts": 4, "expert_size": 32, "shared_size": 64},
                "expert_names": KNOWN["DeepseekV3ForCausalLM"].experts.names,
                "latent": LatentSizes(query_rank=24, key_value_rank=32, plain=16, rotated=8, value=16),
            }
        ),
    ),
    "gpt-oss": (
        GptOssConfig(
            **named("GptOssForCausalLM") | {"intermediate_size": 64},
            **{"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
        ),
        Architecture(
            **OF_SIZES
            | {
                **{"biases": True, "output_bias": True, "sinks": True, "with_experts": (True, True)},
                **{"experts": 4, "expert_size": 64, "expert_names": KNOWN["GptOssForCausalLM"].experts.names},
            }
        ),
    ),
    "qwen2-moe": (
        Qwen2MoeConfig(**named("Qwen2MoeForCausalLM"), **EXPERTS, shared_expert_intermediate_size=80),
        Architecture(
            **OF_SIZES | {"biases": True, "with_experts": (True, True), "experts": 4, "expert_size": 32, "shared_size": 80}
        ),
    ),
}
LAYOUTS = {
    "one": EngineLayout(1),
    "two": EngineLayout(2),
    "heads-on-two-workers": EngineLayout(4),
    "whole-experts": EngineLayout(2, whole_experts=True),
    "two-ranks": EngineLayout(1, 2),
    "two-ranks-of-two-with-whole-experts": EngineLayout(2, 2, whole_experts=True),
}


def region(shape, start, extent, *, transposed=False):
    """As ``torch.as_strided`` takes it, without dimensions of one element, whose stride means nothing."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    offset = sum(begin * stride for begin, stride in zip(start, strides, strict=True))
    axes = [(size, stride) for size, stride in zip(extent, strides, strict=True) if size > 1]
    return (*(axes[::-1] if transposed else axes), offset)


def flat(size, stride, offset):
    return (*((each, step) for each, step in zip(size, stride, strict=True) if each > 1), offset)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_the_plan_is_what_vllms_loaders_copy(model, layout, tmp_path):
    """The loaders run without data for each worker; vLLM only believes to be one of several."""
    config, architecture = MODELS[model]
    if (layout.whole_experts or layout.data > 1) and not architecture.experts:
        pytest.skip("there are no experts to share out")
    shapes = {tensor.name: tensor.shape for tensor in architecture.tensors()}
    if check_engine(architecture, layout) is not None:
        pytest.skip("vLLM's class cannot be divided so")
    for worker in range(layout.workers):
        divided = {"data": layout.data, "whole_experts": layout.whole_experts}
        with vllm_model(config, tmp_path, worker, layout.tensor, **divided) as vllm:
            there = dict(vllm.named_parameters())
            recorder = Recorder({name: torch.empty(shape, device="meta") for name, shape in shapes.items()}, {vllm: there})
            # The recorder knows tensors by their memory, so the loaders must get those that it was made with.
            with recorder, torch.no_grad():
                vllm.load_weights(recorder.sources.items())
        assert {name: tuple(parameter.shape) for name, parameter in there.items()} == parameters(architecture, layout, worker)
        copied, padded = set(), 0
        for name, steps in recorder.steps[vllm].items():
            copied |= {(s.name, flat(*s.source), name, flat(*s.target)) for s in steps if isinstance(s, Copy)}
            padded += sum(math.prod(s.target[0]) for s in steps if isinstance(s, Padding))
        planned = {
            (
                target.source.name,
                region(shapes[target.source.name], target.source.start, target.source.extent, transposed=target.transposed),
                target.parameter,
                region(tuple(there[target.parameter].shape), target.at, target.extent),
            )
            for target in targets(architecture, layout, worker)
        }
        assert planned == copied
        assert padded == padding(architecture, layout, worker)


@pytest.mark.parametrize("architecture", KNOWN)
def test_a_description_says_whether_vllm_ties_the_output_layer(architecture, tmp_path):
    """A tied model has an output layer of its own in vLLM, to be loaded, only where the plan refuses such a model."""
    (config,) = [copy.deepcopy(config) for config, _ in MODELS.values() if config.architectures == [architecture]] or [
        MistralConfig(**named(architecture), sliding_window=None)
    ]
    config.tie_word_embeddings = True
    with vllm_model(config, tmp_path, 0, 1) as vllm:
        parameters = {name for name, _ in vllm.named_parameters()}
    assert parameters & {EMBEDDING, "model.embedding.weight"}
    assert (OUTPUT not in parameters) is KNOWN[architecture].engine_ties


def packed(vllm, tensors):
    """Have vLLM load and pack the tensors."""
    vllm.load_weights(tensors.items())
    for module in vllm.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, QuantizeMethodBase):
            method.process_weights_after_loading(module)


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("model", ["qwen3-moe", "gpt-oss"])
def test_the_plan_by_which_an_engine_loads_is_the_same_and_packs_experts_as_vllm_does(model, worker, tmp_path):
    config, architecture = MODELS[model]
    layout, shapes = LAYOUTS["two"], {tensor.name: tensor.shape for tensor in architecture.tensors()}
    old, new = ({name: torch.randn(shape) for name, shape in shapes.items()} for _ in range(2))
    with vllm_model(config, tmp_path, worker, layout.tensor) as vllm:
        record_metadata_for_reloading(vllm)
        packed(vllm, old)
        plan = LoadPlan.of(vllm, shapes, [])
        assert plan is not None
        assert set(plan.targets) == set(targets(architecture, layout, worker))
        with closing(SharedMemory("plan", 0, str(tmp_path))) as writer, closing(SliceReader(plan.targets)) as slices:
            shards = [Shard(name, shapes[name], (0,) * tensor.dim(), tensor) for name, tensor in new.items()]
            publication = writer.write(PolicyVersion(1), shards)
            reading = slices.read(publication)
            for layer in plan.prepare(reading.fill):
                layer.exchange()
        assert reading.total() == publication.fingerprint
        for module in vllm.modules():  # kernels hold the very parameters
            if getattr(module, "sinks", None) is not None:
                assert module.attn.impl.sinks is module.sinks
            if getattr(module, "w13_bias", None) is not None:
                assert module.quant_method.moe_kernel.fused_experts.w1_bias is module.w13_bias
                assert module.quant_method.moe_kernel.fused_experts.w2_bias is module.w2_bias
    with vllm_model(config, tmp_path, worker, layout.tensor) as expected:
        packed(expected, new)
    loaded = dict(vllm.named_parameters())
    assert any("w13_weight" in name for name in loaded)
    for name, parameter in expected.named_parameters():
        assert torch.equal(loaded[name], parameter), name


@st.composite
def architectures(draw):
    """Every architecture that the learner knows, in sizes that many layouts divide."""
    groups, queries, experts = draw(st.sampled_from([2, 4])), draw(st.sampled_from([1, 2])), draw(st.sampled_from([0, 4]))
    layers = draw(st.sampled_from([4, 8]))
    with_experts = tuple(draw(st.booleans()) and experts > 0 for _ in range(layers))
    return Architecture(
        hidden_size=draw(st.sampled_from([3, 8])),
        heads=groups * queries,
        key_value_heads=groups,
        head_size=draw(st.sampled_from([1, 2])),
        intermediate_size=8,
        vocabulary=draw(st.sampled_from([4, 60, 64, 68, 132])),
        tied=draw(st.booleans()),
        biases=draw(st.booleans()),
        head_norms=draw(st.booleans()),
        with_experts=with_experts,
        experts=experts,
        expert_size=8 if experts else 0,
        expert_names=ExpertNames(joint=draw(st.booleans())),
    )


@st.composite
def learner_layouts(draw):
    tensor, context, data = (draw(st.sampled_from(sizes)) for sizes in ([1, 2], [1, 2], [1, 2]))
    shared = [(expert, cut) for expert in (1, 2, 4) for cut in (1, 2) if (tensor * context * data) % (expert * cut) == 0]
    expert, expert_tensor = draw(st.sampled_from(shared))
    pipeline, virtual = draw(st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 1)]))
    return ParallelLayout(
        tensor=tensor,
        context=context,
        data=data,
        expert=expert,
        expert_tensor=expert_tensor,
        pipeline=pipeline,
        virtual_pipeline=virtual,
    )


def published(architecture, layout):
    return {
        rank: [held.rectangle for held in held_weights(architecture, RankPlace(rank=rank, layout=layout)) if held.published]
        for rank in range(layout.ranks)
    }


def fill(array, start, extent):
    array[tuple(slice(begin, begin + size) for begin, size in zip(start, extent, strict=True))] += 1


@settings(deadline=None, max_examples=60)
@given(architectures(), learner_layouts())
def test_the_ranks_publish_every_tensor_exactly_once_and_nothing_that_they_do_not_hold(architecture, layout):
    seen = {tensor.name: np.zeros(tensor.shape, int) for tensor in architecture.tensors()}
    for rank in range(layout.ranks):
        held = list(held_weights(architecture, RankPlace(rank=rank, layout=layout)))
        assert len({each.rectangle.name for each in held}) == len(held)
        for each in held:
            ends = [begin + size for begin, size in zip(each.rectangle.start, each.rectangle.extent, strict=True)]
            assert all(end <= size for end, size in zip(ends, each.shape, strict=True))
            if each.published:
                fill(seen[each.rectangle.name], each.rectangle.start, each.rectangle.extent)
    assert all((count == 1).all() for count in seen.values())


@settings(deadline=None, max_examples=60)
@given(architectures(), learner_layouts(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.booleans())
def test_the_slices_and_the_padding_fill_every_parameter_exactly_once(architecture, layout, tensor, data, whole_experts):
    engine = EngineLayout(tensor, data, whole_experts)
    if check_engine(architecture, engine) is not None:
        return
    workers = engine.workers
    sources = published(architecture, layout)
    needed = [list(targets(architecture, engine, worker)) for worker in range(workers)]
    slices = plan_slices(sources, needed)
    rectangles = {rank: {rectangle.name: rectangle for rectangle in held} for rank, held in sources.items()}
    made = [{name: np.zeros(shape, int) for name, shape in parameters(architecture, engine, w).items()} for w in range(workers)]
    for each in slices:
        assert rectangles[each.rank][each.source.name].shared(each.source) == each.source, "the rank publishes it"
        extent = Target(each.source, each.parameter, each.at, each.transposed).extent
        fill(made[each.worker][each.parameter], each.at, extent)
    for worker, arrays in enumerate(made):
        assert max(array.max(initial=0) for array in arrays.values()) == 1
        empty = sum(int((array == 0).sum()) for array in arrays.values())
        assert empty == padding(architecture, engine, worker)
    counts = moved_elements(slices)
    for worker, targeted in enumerate(needed):
        received = sum(count for (_, to), count in counts.items() if to == worker)
        assert received == sum(target.source.elements for target in targeted)


def test_what_nobody_publishes_and_what_two_ranks_publish_is_refused():
    whole = Rectangle("lm_head.weight", (0, 0), (4, 2))
    needed = [[Target(whole, "lm_head.weight", (0, 0))]]
    with pytest.raises(WeightMismatch, match=r"needs 8 elements .* publish 4 of them"):
        plan_slices({0: [Rectangle("lm_head.weight", (0, 0), (2, 2))]}, needed)
    with pytest.raises(WeightMismatch, match="publish 16 of them"):
        plan_slices({0: [whole], 1: [whole]}, needed)


def test_what_is_merged_and_divided_is_said_once_for_all_layers():
    architecture = Architecture(**OF_SIZES | {"vocabulary": 320, "key_value_heads": 4, "head_norms": True})
    needed = [list(targets(architecture, EngineLayout(2), worker)) for worker in range(2)]
    slices = plan_slices(published(architecture, ParallelLayout(tensor=4)), needed)
    shapes = {tensor.name: tensor.shape for tensor in architecture.tensors()}
    said = {merge.parameter: (len(merge.tensors), merge.pieces, merge.divided) for merge in merges(slices, shapes)}
    assert said["model.layers.*.self_attn.qkv_proj.weight"] == (3, 6, True)
    assert said["model.layers.*.mlp.down_proj.weight"] == (1, 2, True)
    assert "model.norm.weight" not in said
    assert {each.rank for each in slices} == {0, 1, 2, 3}
