"""Publications leave each tensor of an engine's model where it is: CUDA graphs replay with the addresses that they saw."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest import mock

import msgspec
import pytest
import torch
from safetensors.torch import save_file
from transformers import DeepseekV3Config, Qwen3Config, Qwen3MoeConfig
from vllm.model_executor.layers import linear, vocab_parallel_embedding
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as moe
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from vllm_models import vllm_model

from asyncrl.core.adapters import AdapterSettings
from asyncrl.core.architectures.architecture import Architecture
from asyncrl.core.architectures.deepseek_v3 import DESCRIPTION as DEEPSEEK_V3
from asyncrl.core.errors import WeightMismatch
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, Shard
from asyncrl.weights.checkpoint import Checkpoint
from asyncrl.weights.shm.shared_tensors import SharedMemory
from asyncrl.weights.vllm import engine_weights
from asyncrl.weights.vllm.adapter_slots import AdapterSlots
from asyncrl.weights.vllm.engine_weights import InitInfo, PublicationTransfer, PublicationWorker
from asyncrl.weights.vllm.load_plan import LoadPlan
from asyncrl.weights.vllm.slice_reader import WHOLE, SliceReader
from asyncrl.weights.vllm.staged_weights import StagedWeights

PUBLICATIONS = 5
made_plan = LoadPlan.of
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "vocab_size": 321,
    "intermediate_size": 96,
    "dtype": "float32",
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
DENSE, SPARSE = ["Qwen3ForCausalLM"], ["Qwen3MoeForCausalLM"]
MODELS = {
    "tied": Qwen3Config(**SIZES, architectures=DENSE, tie_word_embeddings=True),
    "untied": Qwen3Config(**SIZES, architectures=DENSE, tie_word_embeddings=False),
    "experts": Qwen3MoeConfig(**SIZES, **EXPERTS, architectures=SPARSE, mlp_only_layers=[0], tie_word_embeddings=False),
    "latent": DeepseekV3Config(
        **SIZES | {"num_key_value_heads": 4, "architectures": [DEEPSEEK_V3.name], "tie_word_embeddings": False},
        **{"q_lora_rank": 24, "kv_lora_rank": 512, "qk_nope_head_dim": 16, "qk_rope_head_dim": 64, "v_head_dim": 16},
        **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1},
        **{"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "topk_method": "noaux_tc", "num_mtp_layers": 0},
    ),
}

TENSORS = {
    "hidden_size": 64,
    "heads": 4,
    "key_value_heads": 2,
    "head_size": 16,
    "intermediate_size": 96,
    "vocabulary": 321,
    "biases": False,
    "head_norms": True,
}
ARCHITECTURES = {
    "tied": Architecture(**TENSORS, tied=True, with_experts=(False, False)),
    "untied": Architecture(**TENSORS, tied=False, with_experts=(False, False)),
    "experts": Architecture(**TENSORS, tied=False, with_experts=(False, True), experts=4, expert_size=32),
    "latent": DEEPSEEK_V3.architecture(MODELS["latent"]),
}
"""The tensors of each model's checkpoint."""


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Have vLLM's layers leave weights in the layout in which they are loaded, as unquantised ones are on a GPU."""
    elsewhere = mock.Mock(**{"is_cpu.return_value": False, "is_xpu.return_value": False})
    with (
        mock.patch.object(linear, "current_platform", elsewhere),
        mock.patch.object(vocab_parallel_embedding, "current_platform", elsewhere),
        mock.patch.object(
            moe, "convert_to_unquantized_kernel_format", lambda *_, w13_weight, w2_weight, **__: (w13_weight, w2_weight)
        ),
        mock.patch.object(
            moe.UnquantizedFusedMoEMethod, "_init_moe_kernel", lambda method, _: setattr(method, "moe_kernel", mock.Mock())
        ),
    ):
        yield


def addresses(model: torch.nn.Module) -> dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]]:
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: (tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) for name, tensor in tensors}


class Worker(PublicationWorker):
    """A worker of an engine, by those of vLLM's methods that a load calls."""

    def __init__(self, transfer: PublicationTransfer) -> None:
        self.weight_transfer_engine = transfer
        self.start_weight_update = transfer.start_weight_update
        self.update_weights = transfer.update_weights
        self.finish_weight_update = transfer.finish_weight_update


@contextmanager
def engine(name: str, folder: Path) -> Iterator[tuple[torch.nn.Module, Worker]]:
    """A model of vLLM's that is loaded, and the worker that has it, which loads as on a GPU: without a plan of slices."""
    folder.mkdir()
    save_file({each.name: torch.zeros(each.shape) for each in ARCHITECTURES[name].tensors()}, folder / "model.safetensors")
    with as_on_a_gpu(), vllm_model(MODELS[name], folder, 0, 1) as model:
        record_metadata_for_reloading(model)
        load(model, tensors_of(name, 0))
        parallel = {"data_parallel_index": 0, "world_size": 1, "rank": 0, "node_rank": 0}
        settings = mock.Mock(**{f"parallel_config.{name}": value for name, value in parallel.items()})
        settings.model_config.model, settings.model_config.dtype = str(folder), torch.float32
        transfer = PublicationTransfer(mock.Mock(), settings, torch.device("cpu"), model)
        with mock.patch.object(LoadPlan, "of", return_value=None), mock.patch.object(engine_weights, "_have_experts_packed"):
            transfer.init_transfer_engine(InitInfo(engine="engine"))
            yield model, Worker(transfer)
        transfer.shutdown()


FULL = 3 << 30
"""Bytes that are free when weights are about to be staged, and taken by somebody else meanwhile."""


class OtherStream:
    """A GPU's memory and streams, for tensors on a CPU.

    Args:
        free: bytes.
    """

    def __init__(self, free: int) -> None:
        self.free, self.staging, self.waits, self.given_back = free, False, 0, 0

    def memory(self) -> tuple[int, int]:
        return self.free, 80 << 30

    @contextmanager
    def beside(self) -> Iterator[None]:
        self.staging = True
        try:
            yield
            if self.free == FULL:
                raise torch.OutOfMemoryError
        finally:
            self.staging = False

    def wait(self) -> None:
        assert not self.staging
        self.waits += 1

    def give_back(self) -> None:
        assert not self.staging
        self.given_back += 1


def stage_beside(worker: Worker, gpu: OtherStream, share: float = 0.85) -> None:
    """Have the worker's transfer stage weights as on a GPU."""
    transfer = worker.weight_transfer_engine
    plan = made_plan(transfer.model, transfer._checkpoint.shapes, transfer._tied, in_place=True)
    assert plan is not None
    transfer._staged = StagedWeights(plan, torch.device("cpu"), share, gpu)
    transfer._slices = SliceReader(plan.targets, WHOLE)


def load(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """What vLLM does with a checkpoint."""
    model.load_weights(tensors.items())
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, QuantizeMethodBase):
            method.process_weights_after_loading(module)
    for module in model.modules():
        if is_deferred_attention_layer(module):
            module.process_weights_after_loading(torch.float32)


def copies(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def tensors_of(name: str, version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {each.name: torch.randn(each.shape, generator=generator) for each in ARCHITECTURES[name].tensors()}


@pytest.mark.parametrize(
    ("name", "staged"), [*((name, False) for name in MODELS), *((name, True) for name in MODELS if name != "latent")]
)
def test_publications_are_written_where_the_weights_are_that_graphs_have_seen(name: str, staged: bool, tmp_path: Path) -> None:
    gpu = OtherStream(40 << 30)
    with closing(SharedMemory("graphs", 0, str(tmp_path))) as file, engine(name, tmp_path / "model") as (model, worker):
        seen = addresses(model)
        held = {each: tensor for each, tensor in model.named_parameters()}  # noqa: C416 - no memory is freed and taken again
        if staged:
            stage_beside(worker, gpu)
        for version in range(1, PUBLICATIONS + 1):
            tensors = tensors_of(name, version)
            shards = [Shard(each, tuple(tensor.shape), (0,) * tensor.dim(), tensor) for each, tensor in tensors.items()]
            publication = file.write(PolicyVersion(version), shards)
            encoded, before = msgspec.msgpack.encode(publication), copies(model)
            worker.weight_transfer_engine.prepare(encoded)
            assert all(torch.equal(tensor, before[each]) for each, tensor in model.named_parameters()), "they are in use"
            assert worker.load_publication(encoded, 0) == publication.fingerprint
            assert addresses(model) == seen
        assert gpu.waits == (PUBLICATIONS if staged else 0)
        assert all(tensor is held[each] for each, tensor in model.named_parameters())
    with as_on_a_gpu(), vllm_model(MODELS[name], tmp_path / "model", 0, 1) as expected:
        load(expected, tensors)
    for each, tensor in expected.named_parameters():
        assert torch.equal(held[each], tensor), each


@pytest.mark.parametrize(
    ("free", "share", "staged"), [(1 << 30, 0.85, 0), (FULL, 0.85, 0), (2 << 30, 0.85, 2), (2 << 30, 0.4, 0), (12 << 30, 0.4, 2)]
)
def test_weights_are_staged_where_memory_allows(free: int, share: float, staged: int, tmp_path: Path) -> None:
    gpu = OtherStream(free)
    with closing(SharedMemory("graphs", 0, str(tmp_path))) as file, engine("tied", tmp_path / "model") as (model, worker):
        stage_beside(worker, gpu, share)
        for version in (1, 2):
            publish(file, worker, "tied", version)
        assert gpu.waits == staged
        assert gpu.given_back == (2 if free == FULL else 0)
        assert torch.equal(model.model.norm.weight, tensors_of("tied", 2)["model.norm.weight"])


def test_a_plan_that_makes_other_weights_than_vllm_is_given_up(tmp_path: Path) -> None:
    gpu = OtherStream(40 << 30)

    def turned(*_: object, w13_weight: torch.Tensor, w2_weight: torch.Tensor, **__: object) -> tuple[torch.Tensor, torch.Tensor]:
        return w13_weight.flip(1), w2_weight

    with closing(SharedMemory("graphs", 0, str(tmp_path))) as file, engine("experts", tmp_path / "model") as (model, worker):
        stage_beside(worker, gpu)
        with mock.patch.object(moe, "convert_to_unquantized_kernel_format", turned):
            for version in (1, 2):
                publish(file, worker, "experts", version)
        assert gpu.waits == 0
        assert gpu.given_back == 1
        experts = model.model.layers[1].mlp.experts.routed_experts.w13_weight
        assert torch.equal(experts[0, -1], tensors_of("experts", 2)["model.layers.1.mlp.experts.0.gate_proj.weight"][0])


def publish(file: SharedMemory, worker: Worker, name: str, version: int) -> bytes:
    tensors = tensors_of(name, version)
    shards = [Shard(each, tuple(tensor.shape), (0,) * tensor.dim(), tensor) for each, tensor in tensors.items()]
    publication = file.write(PolicyVersion(version), shards)
    encoded = msgspec.msgpack.encode(publication)
    worker.weight_transfer_engine.prepare(encoded)
    assert worker.load_publication(encoded, 0) == publication.fingerprint
    return encoded


ADAPTERS = AdapterSettings(rank=4, alpha=8.0, targets=("q_proj", "k_proj", "v_proj", "o_proj", "down_proj"), versions=2)


def stacked(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers in which vLLM's layers have the adapters of all versions, by name."""
    for name, module in model.named_modules():
        for attribute in ("lora_a_stacked", "lora_b_stacked"):
            for number, tensor in enumerate(getattr(module, attribute, ())):
                yield f"{name}.{attribute}.{number}", tensor


def stacks(model: torch.nn.Module) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in stacked(model)}


def test_adapters_are_written_into_the_buffers_that_graphs_have_seen(tmp_path: Path) -> None:
    from vllm.config import LoRAConfig
    from vllm.lora.model_manager import create_lora_manager

    with engine("tied", tmp_path / "model") as (model, _):
        config = LoRAConfig(max_lora_rank=8, max_loras=3, max_cpu_loras=3, lora_dtype=torch.float32)
        manager = create_lora_manager(model, 8, 64, 321, config, mock.Mock(), torch.device("cpu"))
        slots = AdapterSlots(manager.model, ADAPTERS)
        seen, before = stacks(model), addresses(model)
        assert sum("proj" in name for name in seen) == 2 * 2 * (3 + 1 + 2 + 1), "of two layers: q, k and v, o, gate and up, down"
        generator, written = torch.Generator().manual_seed(0), set()
        for version in range(1, PUBLICATIONS + 1):
            shapes = Checkpoint(str(tmp_path / "model"), ADAPTERS).shapes
            slots.prepare({name: torch.randn(shape, generator=generator) for name, shape in shapes.items()})
            slots.put_into_slot(version % ADAPTERS.versions)
            assert stacks(model) == seen
            assert addresses(model) == before
            written.add(sum(float(each.sum()) for _, each in stacked(model)))
        assert len(written) == PUBLICATIONS


def test_what_replaces_a_tensor_is_noticed(tmp_path: Path) -> None:
    with engine("tied", tmp_path / "model") as (model, _):
        seen = addresses(model)
        norm = model.model.norm
        norm.weight = torch.nn.Parameter(norm.weight.detach().clone())
        assert addresses(model) != seen


def test_weights_that_vllm_makes_of_others_have_no_plan_and_are_made_anew(tmp_path: Path) -> None:
    made = [f"model.layers.{layer}.self_attn.mla_attn.mla_attn.{name}" for layer in range(2) for name in ("W_UK_T", "W_UV")]
    with closing(SharedMemory("graphs", 0, str(tmp_path))) as file, engine("latent", tmp_path / "model") as (model, worker):
        transfer = worker.weight_transfer_engine
        assert made_plan(model, transfer._checkpoint.shapes, transfer._tied, in_place=True) is None
        assert made_plan(model, transfer._checkpoint.shapes, transfer._tied) is None
        before = copies(model)
        encoded = publish(file, worker, "latent", 1)
        after = copies(model)
        assert not transfer._mappings._files
        transfer.device = torch.device("cuda")
        transfer.prepare(encoded)
        assert set(transfer._mappings._files) == {each.path for each in msgspec.msgpack.decode(encoded, type=Publication).files}
    assert not any(torch.equal(before[each], after[each]) for each in made)


def test_an_engine_does_not_begin_with_weights_that_nothing_would_make_anew(tmp_path: Path) -> None:
    with engine("untied", tmp_path / "model") as (model, worker):
        model.model.norm.register_parameter("doubled", torch.nn.Parameter(2 * model.model.norm.weight.detach()))
        with pytest.raises(WeightMismatch, match=r"vLLM has made model\.norm\.doubled of the weights that it loaded"):
            worker.weight_transfer_engine.init_transfer_engine(InitInfo(engine="engine"))
