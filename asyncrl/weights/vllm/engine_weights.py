"""Loads publications into an engine, as a vLLM weight-transfer backend, and proves what was loaded.

vLLM calls :func:`register` in each of its processes (entry point ``vllm.general_plugins``). What always holds for a load that
raises nothing: the publication brought exactly the tensors of the checkpoint that the engine began with, each covered exactly
once; every parameter of the model was made from them, by vLLM's loaders from whole tensors, or from slices by a plan of what
these do (:mod:`asyncrl.weights.vllm.load_plan`); and the acknowledged fingerprint is that of the very tensors that the loaders
received, or of the very shards of which the plan took slices. On CPU, linear weights are repacked into the layout of vLLM's
kernels, so the model's parameters cannot be compared bit by bit afterwards. If adapters alone are published, the same holds for
their matrices (:mod:`asyncrl.weights.vllm.adapter_slots`), and nothing changes the model's own weights.
"""

import logging
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from asyncrl.core.adapters import AdapterSettings
from asyncrl.core.errors import ComponentFailed, WeightMismatch
from asyncrl.core.process.parent_watch import die_with_parent
from asyncrl.core.publication import LOAD, PREPARE, VLLM_BACKEND, Publication, Shard
from asyncrl.device.pinning import PinnedFiles
from asyncrl.weights.checkpoint import Checkpoint
from asyncrl.weights.fingerprint import Fingerprints
from asyncrl.weights.nccl.broadcast_receiver import BroadcastReceiver
from asyncrl.weights.shm.shared_tensors import SharedMemory
from asyncrl.weights.vllm.adapter_slots import AdapterSlots
from asyncrl.weights.vllm.derived_weights import derived_weights
from asyncrl.weights.vllm.load_plan import LoadPlan, PreparedLayer
from asyncrl.weights.vllm.publication_calls import load_publication, prepare_publication
from asyncrl.weights.vllm.rounding_log import explain_rounding
from asyncrl.weights.vllm.slice_reader import WHOLE, SliceReader
from asyncrl.weights.vllm.staged_weights import Cuda, StagedWeights
from asyncrl.weights.vllm.worker_answers import Answer

logger = logging.getLogger(__name__)


def register() -> None:
    """Make the backend known to vLLM in this process, and tie vLLM's child processes to their parent. Safe to call again."""
    from vllm.v1.engine.core import EngineCoreProc

    setattr(EngineCoreProc, PREPARE, prepare_publication)
    setattr(EngineCoreProc, LOAD, load_publication)
    with suppress(ValueError):  # it is registered already
        WeightTransferEngineFactory.register_engine(VLLM_BACKEND, PublicationTransfer)
    explain_rounding()
    die_with_parent()


@dataclass
class InitInfo(WeightTransferInitInfo):
    """What the engine must know in advance. A publication itself names its files.

    Attributes:
        engine: its name, which no other engine of the run has.
        ranks: its data-parallel ranks, each a process of vLLM's with workers of its own.
        adapters: an encoded :class:`AdapterSettings` if adapters alone are published.
    """

    engine: str = ""
    ranks: int = 1
    adapters: dict[str, Any] | None = None


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """What an update brings: ``publication``, a :class:`Publication` encoded as MessagePack."""

    publication: bytes


class _Prepared(NamedTuple):
    """A publication that is ready to be put into use: its encoding, its layers unless they are staged, and the fingerprint of its
    tensors."""

    publication: bytes
    layers: list[PreparedLayer]
    fingerprint: int


class PublicationTransfer(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Loads publications. One instance lives in each vLLM worker.

    Attributes:
        fingerprint: fingerprint of the tensors that the last completed update handed to the model; None before the first.
        adapters: the versions that the engine holds side by side, if adapters alone are published.
        broadcasts: takes publications that the learner's ranks broadcast.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    fingerprint: int | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Note which tensors the checkpoint holds and which parameters the model has, before the first update replaces them."""
        settings = None if init_info.adapters is None else msgspec.convert(init_info.adapters, AdapterSettings)
        self.adapters = None if settings is None else AdapterSlots(self.model, settings)
        self._checkpoint = Checkpoint(self.model_config.model, settings)
        self._parameters = {name for name, _ in self.model.named_parameters()}
        if settings is None:
            self._parameters -= derived_weights(self.model)
        self._tied = _tied_layers(self.model)
        self._prepared: _Prepared | None = None
        self._mappings = PinnedFiles()
        parallel = self.parallel_config
        worker = parallel.data_parallel_index * parallel.world_size + parallel.rank
        self.broadcasts = BroadcastReceiver(init_info.engine, worker, init_info.ranks * parallel.world_size, self.device)
        in_place = self.device.type == "cuda"
        known = in_place or self.device.type == "cpu"
        planned = known and self.adapters is None
        plan = LoadPlan.of(self.model, self._checkpoint.shapes, self._tied, in_place=in_place) if planned else None
        self._load_plan = None if in_place else plan
        self._staged: StagedWeights | None = None
        if plan is not None and in_place:
            share = self.vllm_config.cache_config.gpu_memory_utilization
            self._staged = StagedWeights(plan, self.device, share, Cuda(self.device))
        self._slices: SliceReader | None = None
        if plan is not None:
            self._slices = SliceReader(plan.targets, WHOLE, self._mappings) if in_place else SliceReader(plan.targets)
        # vLLM warns of every layer that a reload leaves untouched. For tied layers that is right; for any other, we raise.
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)

    def prepare(self, encoded: bytes, *, paused: bool = False) -> None:
        """Make a publication's weights ready beside those in use, if they are adapters or there is a plan. May run in any thread.

        If ranks broadcast it, it is taken first, unless there is no room for it before the engine is paused.

        Raises:
            WeightMismatch: its tensors are not those of the checkpoint.
            ComponentFailed, DeadlineExceeded: a learner rank did not broadcast it.
        """
        publication = self._decoded(encoded)
        if publication.senders and not paused and not self.broadcasts.receive_publication(publication):
            return
        self._prepared = None  # adapters are about to be overwritten
        if self.adapters is not None:
            self._checkpoint.check(publication.shards)
            tensors = _Fingerprinting(self._read(publication))
            self.adapters.prepare(dict(tensors))
            if self.device.type != "cpu":
                torch.accelerator.synchronize()
            self._prepared = _Prepared(encoded, [], tensors.total())
        elif self._load_plan is not None and self._slices is not None and not publication.senders:
            self._checkpoint.check(publication.shards)
            reading = self._slices.read(publication)
            layers = self._load_plan.prepare(reading.fill)
            self._prepared = _Prepared(encoded, layers, reading.total())
        elif self._staged is not None and self._slices is not None and not publication.senders:
            self._checkpoint.check(publication.shards)
            found = self._staged.stage(self._slices.read(publication))
            self._prepared = None if found is None else _Prepared(encoded, [], found)
        elif self.device.type == "cuda" and not publication.senders:
            SharedMemory.read_shards(publication, self._mappings)  # which pins the files, before the pause in which they are read

    def exchange(self, encoded: bytes, slot: int) -> bool:
        """Put the weights that were prepared for this publication into use; return False if none were.

        Args:
            slot: where to put adapters.
        """
        prepared = self._prepared
        if prepared is not None and prepared.publication == encoded and self._staged is not None and not self._staged.proven:
            return False  # vLLM's own loaders are asked first, and what they make proves what was staged
        self._prepared = None
        if prepared is None or prepared.publication != encoded:
            return False
        if self._staged is not None:
            self._staged.exchange()
        for layer in prepared.layers:
            layer.exchange()
        if self.adapters is not None:
            self.adapters.put_into_slot(slot)
        self.fingerprint = prepared.fingerprint
        return True

    def start_weight_update(self) -> None:
        """Begin an update. This changes nothing yet, because the publication is checked first."""
        self._loaded: int | None = None

    def update_weights(self, update_info: dict[str, bytes]) -> None:
        """Load an update like the base class, but without synchronising devices where torch has no accelerator."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Load a publication.

        Raises:
            WeightMismatch: its tensors are not those of the checkpoint, or do not reach the whole model.
        """
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        publication = self._decoded(update_info.publication)
        self._checkpoint.check(publication.shards)
        initialize_layerwise_reload(self.model)
        if self.device.type == "cpu":
            _have_experts_packed(self.model)
        tensors = _Fingerprinting(self._read(publication))
        reached = self.model.load_weights(tensors)
        unreached = sorted(self._parameters - (reached or self._parameters)) or self._untouched_layers()
        if unreached:
            raise WeightMismatch(
                f"version {publication.version} did not reach {', '.join(unreached)} of the engine's model; "
                f"vLLM's loader for {type(self.model).__name__} does not take every tensor of its own checkpoint"
            )
        self._loaded = tensors.total()

    def _decoded(self, publication: bytes) -> Publication:
        """Return a publication with the files of this worker's node."""
        return msgspec.msgpack.decode(publication, type=Publication).on_node(self.parallel_config.node_rank)

    def _read(self, publication: Publication) -> Iterator[tuple[str, torch.Tensor]]:
        if publication.senders:
            return self.broadcasts.read(publication)
        if self.device.type == "cpu" or self.adapters is not None:  # tensors of one shard are used where they lie
            return SharedMemory.read(publication)
        return SharedMemory.read(publication, self.device, self._mappings)  # through mappings that are pinned once

    def _untouched_layers(self) -> list[str]:
        """Return the names of layers for which the reload has loaded nothing; vLLM would silently keep their old values."""
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        untouched = []
        for name, layer in self.model.named_modules():
            info = get_layerwise_info(layer)
            has_parameters = next(layer.parameters(recurse=False), None) is not None
            if has_parameters and info.can_load() and info.load_numel == 0 and layer not in self._tied:
                untouched.append(name)
        return untouched

    def finish_weight_update(self) -> None:
        """Bring the loaded weights into the kernels' layout.

        Raises:
            WeightMismatch: no publication was loaded in this update.
        """
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        if self._loaded is None:
            raise WeightMismatch("a weight update was finished before anything was loaded; send it a publication first")
        finalize_layerwise_reload(self.model, self.model_config)
        for layer in self._tied:
            # A tied layer shares the new values, but on CPU it also has a packed copy of the old ones, which no loader renews.
            method: Any = layer.quant_method
            method.process_weights_after_loading(layer)
        self.fingerprint, self._loaded = self._loaded, None
        if self._staged is not None and self._prepared is not None:
            self._staged.prove()
        self._prepared = None

    def shutdown(self) -> None:
        """Leave the ranks' groups, and unpin the mapped files; they are unmapped with the last tensor that views them."""
        if "broadcasts" not in vars(self):  # the engine ended before its transfers began
            return
        self.broadcasts.close()
        self._mappings.close()
        if self._slices is not None:
            self._slices.close()


def _tied_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the layers whose parameters all belong to a layer before them, e.g. a tied output embedding."""
    seen: set[int] = set()
    tied = []
    for layer in model.modules():
        own = {id(parameter) for parameter in layer.parameters(recurse=False)}
        if own and own <= seen:
            tied.append(layer)
        seen |= own
    return tied


def _have_experts_packed(model: torch.nn.Module) -> None:
    """Make vLLM pack experts for its CPU kernel when it loads them.

    vLLM packs them only when it makes the kernel. A kernel that exists would be kept, and would read the new, unpacked weights as
    packed.
    """
    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


class _Fingerprinting:
    """Passes tensors on and adds up their fingerprints on the way, on the device where they are."""

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._tensors, self._fingerprints = tensors, Fingerprints()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._tensors:
            self._fingerprints.add(Shard(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor))
            yield name, tensor

    def total(self) -> int:
        """Return the fingerprint of everything that was passed on."""
        return self._fingerprints.total()


class PublicationWorker:
    """Methods that vLLM adds to its worker class (``worker_extension_cls``)."""

    weight_transfer_engine: PublicationTransfer
    preparing_apart: "Future[None] | None" = None
    """What a worker that cannot answer is making ready: it is on another node than the engine's process."""

    def begin_preparing(self, publication: bytes, answers: str) -> bool:
        """Begin to make the weights of a publication ready, in a thread; see :meth:`PublicationTransfer.prepare`.

        Args:
            answers: where the worker answers at the end; see :class:`asyncrl.weights.vllm.worker_answers.Answers`.

        Returns:
            whether it answers there; else :meth:`load_publication` waits until the weights are ready.
        """
        answer, apart, threads = None, Future[None](), torch.get_num_threads()
        if self.weight_transfer_engine.parallel_config.node_rank == 0:
            answer = Answer(answers)
        else:
            self.preparing_apart = apart

        def prepare() -> None:
            problem = ""
            try:
                # oneDNN packs weights for a certain number of threads, and gives wrong results with any other. A new thread
                # gets torch's number when torch is first asked for it there. On a GPU, nothing is packed.
                if torch.get_num_threads() == threads or self.weight_transfer_engine.device.type != "cpu":
                    self.weight_transfer_engine.prepare(publication)
                else:
                    found = torch.get_num_threads()
                    logger.info("a thread has %d OpenMP threads instead of %d: the engine pauses longer", found, threads)
            except BaseException as error:  # noqa: BLE001 - the engine gets it as the answer
                problem = str(error) or type(error).__name__
            if answer is not None:
                answer.give(problem)
            elif problem:
                apart.set_exception(ComponentFailed(problem))
            else:
                apart.set_result(None)

        threading.Thread(target=prepare, name="preparing a publication", daemon=True).start()
        return answer is not None

    def load_publication(self: Any, publication: bytes, slot: int) -> int:
        """Load a publication into the model of the paused engine, and return the fingerprint of what was loaded."""
        transfer, preparing = self.weight_transfer_engine, self.preparing_apart
        if preparing is not None:
            preparing.result()
        if not transfer.exchange(publication, slot):
            if transfer.adapters is not None:
                transfer.prepare(publication, paused=True)
                transfer.exchange(publication, slot)
            else:
                self.start_weight_update()
                self.update_weights({"publication": publication})
                self.finish_weight_update()
        return int(transfer.fingerprint)
