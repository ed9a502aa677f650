"""One rank's networks and optimizers, and the optimizer steps that train them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from asyncrl.core.publication import Shard
from asyncrl.core.recipe.advantage import GaeAdvantageConfig
from asyncrl.core.recipe.algorithm import AlgorithmConfig, NoKlConfig
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.schema import DeadlinesConfig
from asyncrl.device.pinning import HostArena
from asyncrl.learners.batches.metric_tallies import Tally, add_to, summed
from asyncrl.learners.batches.micro_batch import MicroBatch, unsampled
from asyncrl.learners.batches.packing import token_multiple
from asyncrl.learners.checkpointing.checkpoint_manifest import CheckpointShape, Progress
from asyncrl.learners.flops import peak_flops
from asyncrl.learners.megatron import hugging_face, lora, parallel, placement
from asyncrl.learners.megatron.cpu.compat import cuda_means_cpu
from asyncrl.learners.megatron.kernels import kernels_of
from asyncrl.learners.megatron.layers.layer_spec import check_fp8
from asyncrl.learners.megatron.lora import LowRank
from asyncrl.learners.megatron.model import build
from asyncrl.learners.megatron.model_config import PolicyConfig, policy_config, product_shapes
from asyncrl.learners.megatron.network import Network
from asyncrl.learners.megatron.reference import ReferenceWeights
from asyncrl.learners.megatron.state import checkpoint
from asyncrl.learners.megatron.value_model import ValueModel
from asyncrl.learners.rank import RankSpec
from asyncrl.learners.step_clock import Part, StepClock

MicroBatchLoss = Callable[[MicroBatch, Any], tuple[Tensor, Tally]]
"""Computes a micro-batch's share of the loss, and its tally, from the network's output for it, with gradient. The
policy's output is the ``log_probabilities.Predictions`` of the sampled tokens; the critic's is the
values of the states they were sampled in."""


class TrainedStep(msgspec.Struct, frozen=True):
    """The result of one optimizer step.

    Attributes:
        grad_norm: gradient norm of the whole model before clipping; the same on every rank.
        moved: whether weights of this rank moved.
        tally: tally of the whole mini-batch, on the reporting rank; None on the others.
    """

    grad_norm: float
    moved: bool
    tally: Tally | None


class Trainer:
    """The policy on one rank and, if the recipe needs them, the critic and the reference. Construction is collective,
    and so are all methods except :meth:`shards` and :meth:`close`: all ranks make the same calls.

    Attributes:
        peak_flops: dense bfloat16 operations per second of this rank's device; None if not known, or if the recipe's
            data type is not bfloat16.
        clock: measures what a training step is spent on.
        multiple: what the number of a micro-batch's tokens must be divisible by.
        hardware: what this rank computes on.
        routing: the model's routing, if its routers take the experts that engines chose; else None.

    Args:
        algorithm: says whether there is a critic, and whether a reference is kept.
        learner: the model's data type, the parallel layout and the optimizer.
        deadlines: bound the wait for other ranks, at the start and in each training step.
        temperature: temperature at which tokens are sampled.
        seed: the run's seed.
        model_path: Hugging Face folder that the weights are loaded from.
        spec: the place of this rank.

    Raises:
        RecipeError: if the model cannot be built or loaded as asked.
        DeadlineExceeded: if another rank does not come up or, later, does not take part in a collective.
    """

    def __init__(
        self,
        algorithm: AlgorithmConfig,
        learner: LearnerConfig,
        deadlines: DeadlinesConfig,
        *,
        temperature: float,
        seed: int,
        model_path: Path,
        spec: RankSpec,
    ) -> None:
        self._seconds, self._spec, self._source = deadlines.step, spec, model_path
        self.multiple = token_multiple(learner)
        config = policy_config(model_path, learner)
        check_fp8(config.transformer)
        parallel.initialise(spec, deadlines, seed)
        self._device = parallel.device()
        self.hardware = parallel.hardware()
        self.clock = StepClock(self._device)
        self.peak_flops: float | None = None
        if self._device.type == "cuda" and learner.dtype == "bfloat16":
            self.peak_flops = peak_flops(torch.cuda.get_device_name(self._device))
        critic = algorithm.advantage if isinstance(algorithm.advantage, GaeAdvantageConfig) else None
        with self._waiting("building the model"), cuda_means_cpu():
            self._kernels = kernels_of(self._device, config.transformer)
            self._chunks = build(config, self._kernels, learner.virtual_pipeline)
            kl = algorithm.kl
            named = "" if isinstance(kl, NoKlConfig) else kl.reference
            other = self._loaded_reference(Path(named)) if named else None
            with hugging_face.HuggingFaceTensors(model_path) as tensors:
                placement.load(self._chunks, spec, tensors)
            self._lora = None if learner.lora is None else LowRank(self._chunks, spec, learner.lora, seed)
            self._publishes_adapters = learner.lora is not None and learner.lora.publish == "adapter"
            for chunk in self._chunks:
                parallel.check_replicas_equal(chunk)
            shape = self._shape(config, with_critic=critic is not None, reference_weights=0 if other is None else other.bits)
            if not isinstance(kl, NoKlConfig) and other is None and self._lora is None:
                shape = msgspec.structs.replace(shape, first_weights=lora.bit_sum(self._chunks, spec))
            shapes = product_shapes(config)
            if self._lora is not None:
                shapes = msgspec.structs.replace(shapes, adapters=self._lora.weights)
            self.routing = config.routing if learner.experts.replay else None
            self._policy = Network(self._chunks, shapes, learner, temperature, self.clock, replayed=learner.experts.replay)
            self._critic = None if critic is None else self._new_critic(learner, critic, temperature)
        trained = [self._policy] if self._critic is None else [self._policy, self._critic]
        self._state = checkpoint.LearnerState(trained, shape, spec, HostArena())
        self._references: list[LowRank | ReferenceWeights] = []
        if not isinstance(kl, NoKlConfig):
            # With adapters, the frozen weights without them are the reference, or those of a named one in their place.
            self._references = [each for each in (self._lora, other) if each is not None]
            if not self._references:
                self._references = [ReferenceWeights(self._weights())]

    def step(self, micro_batches: Sequence[MicroBatch], loss: MicroBatchLoss, learning_rate: float, version: int) -> TrainedStep:
        """Take one optimizer step over this data-parallel slice's micro-batches, equally many on every slice.

        Raises:
            TrainingDiverged: on every rank, before any weight has changed, if the gradient norm is not finite.
        """
        return self._optimizer_step(self._policy, "policy", micro_batches, loss, learning_rate, version)

    def gradient_norm(self, micro_batches: Sequence[MicroBatch], loss: MicroBatchLoss) -> float:
        """Compute the norm that :meth:`step` would find for these micro-batches, and take no step."""
        with self._waiting("computing a gradient"), cuda_means_cpu():
            self._policy.accumulate(micro_batches, lambda batch, output: loss(batch, output)[0])
            return self._policy.gradient_norm()

    def critic_step(
        self, micro_batches: Sequence[MicroBatch], loss: MicroBatchLoss, learning_rate: float, version: int
    ) -> TrainedStep:
        """Take one optimizer step of the critic; as :meth:`step`."""
        return self._optimizer_step(self._asked_critic(), "critic", micro_batches, loss, learning_rate, version)

    def forward_only(self, micro_batches: Sequence[MicroBatch], loss: MicroBatchLoss) -> TrainedStep:
        """Tally what an optimizer step would, without changing any weight."""
        tally: Tally = {}
        with self._waiting("evaluating the batch"), cuda_means_cpu():
            self._policy.forward_only(micro_batches, lambda batch, seen: add_to(tally, loss(batch, seen)[1]))
            return TrainedStep(0.0, False, self._reduced(tally))

    def values(self, micro_batches: Sequence[MicroBatch]) -> list[Tensor] | list[None]:
        """The critic's current values of each micro-batch's states (float32 [n]); None on all pipeline stages except
        the last."""
        return self._outputs(self._asked_critic(), micro_batches, lambda values: values)

    def log_probabilities(self, micro_batches: Sequence[MicroBatch]) -> list[Tensor] | list[None]:
        """The policy's current log-probabilities of each micro-batch's sampled tokens (float32 [n], nats); None on all
        pipeline stages except the last."""
        return self._outputs(self._policy, micro_batches, lambda predictions: predictions.logp)

    def log_probabilities_of(self, rows: Sequence[Sequence[int]]) -> list[Tensor] | None:
        """The policy's current log-probabilities, at temperature 1, of all tokens of each row but the first (float32, nats).
        None on all pipeline stages except the last.

        Args:
            rows: token ids; the same on all ranks of a data-parallel slice.
        """
        micro_batch = unsampled(rows, self.multiple)
        micro_batches = self.filled_up(micro_batch)
        (found, *_) = self._outputs(self._policy, micro_batches, lambda predictions: predictions.logp, temperature=1.0)
        return None if found is None else list(found.cpu().split([len(row) - 1 for row in rows]))

    def filled_up(self, micro_batch: MicroBatch) -> list[MicroBatch]:
        """Return a micro-batch, and as many of padding as the interleaved schedule needs: one for each further stage."""
        layout = self._spec.layout
        further = layout.pipeline - 1 if layout.virtual_pipeline > 1 else 0
        return [micro_batch, *([unsampled([], self.multiple)] * further)]

    def reference_log_probabilities(self, micro_batches: Sequence[MicroBatch]) -> list[Tensor] | list[None]:
        """As :meth:`log_probabilities`, but under the reference policy.

        Raises:
            RuntimeError: if the recipe needs no reference, so that none was kept.
        """
        if not self._references:
            raise RuntimeError("there is no reference policy; algorithm.kl of kind none keeps none")
        with ExitStack() as places:
            for reference in self._references:
                places.enter_context(reference.in_place())
            return self.log_probabilities(micro_batches)

    @property
    def on_last_stage(self) -> bool:
        """Whether this rank's pipeline stage is the last, which has the log-probabilities."""
        return bool(parallel_state.is_pipeline_last_stage())

    @property
    def flops(self) -> int:
        """Model FLOPs of all passes so far, counting whole networks over this data-parallel slice's micro-batches."""
        return self._policy.flops + (0 if self._critic is None else self._critic.flops)

    def agreed(self, value: float) -> float:
        """Return the reporting rank's ``value`` on all ranks. Collective."""
        with self._waiting("evaluating the batch"):
            shared = torch.tensor(value if self._spec.is_reporter else 0.0, dtype=torch.float64, device=self._device)
            dist.all_reduce(shared)
            return shared.item()

    def added_over_data(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` over the data-parallel ranks. Collective."""
        with self._waiting("evaluating the batch"):
            total = values.to(self._device)
            dist.all_reduce(total, group=parallel_state.get_data_parallel_group())
            return total.cpu()

    def gathered_over_data(self, values: Tensor) -> Tensor:
        """Return the ``values`` of all data-parallel ranks end to end. Collective; each rank passes equally many."""
        with self._waiting("evaluating the batch"):
            group = parallel_state.get_data_parallel_group()
            parts = [torch.empty_like(values, device=self._device) for _ in range(group.size())]
            dist.all_gather(parts, values.to(self._device), group=group)
            return torch.cat(parts).cpu()

    def shards(self) -> Iterator[Shard]:
        """Yield the shards of :func:`.placement.shards`, merged with the adapters if there are any."""
        shards = placement.shards(self._chunks, self._spec)
        return shards if self._lora is None else self._lora.merged(shards)

    def published_shards(self) -> Iterator[Shard]:
        """Yield what this rank publishes: :meth:`shards`, or the adapters alone if ``learner.lora`` says so."""
        return self._lora.shards() if self._lora is not None and self._publishes_adapters else self.shards()

    def save_pretrained(self, folder: Path) -> None:
        """Write the policy as a Hugging Face folder, whole or not at all."""
        adapter = None
        if self._lora is not None:
            adapter = hugging_face.PeftAdapter(self._lora.peft_config(str(self._source)), list(self._lora.shards()))
        with self._waiting("saving the model"):
            hugging_face.save_pretrained(self.shards(), self._source, folder, adapter)

    def start_checkpoint(self, folder: Path, progress: Progress) -> checkpoint.Saving:
        """Copy all networks' state, and begin to write it to ``folder`` in the background."""
        copying = f"copying version {progress.version}"
        with self._waiting(copying), cuda_means_cpu():
            return checkpoint.start_saving(folder, self._state, progress)

    def finish_checkpoint(self, saving: checkpoint.Saving) -> None:
        """Wait until the checkpoint is written on all ranks."""
        with self._waiting("writing a checkpoint"):
            saving.finish(self._seconds)

    def load_checkpoint(self, folder: Path) -> Progress:
        """Load all networks' state from the checkpoint in ``folder``; return how far its run had come."""
        with self._waiting(f"loading {folder}"), cuda_means_cpu():
            return checkpoint.load(folder, self._state)

    def close(self) -> None:
        """Leave the group of ranks, and unpin host memory."""
        self._state.arena.close()
        for reference in self._references:
            if isinstance(reference, ReferenceWeights):
                reference.close()
        parallel.close()

    def _waiting(self, activity: str) -> AbstractContextManager[None]:
        """Context manager around collectives: an error within it says during which ``activity`` the rank was
        waiting."""
        return parallel.named_wait(self._spec, activity, self._seconds)

    def _weights(self) -> list[Tensor]:
        return [weight for chunk in self._chunks for _, weight in chunk.weights()]

    def _loaded_reference(self, path: Path) -> ReferenceWeights:
        """Load the weights of a reference policy, which the policy's own weights are to replace in the model."""
        with hugging_face.HuggingFaceTensors(path) as tensors:
            placement.load(self._chunks, self._spec, tensors)
        return ReferenceWeights(self._weights(), bits=lora.bit_sum(self._chunks, self._spec))

    def _shape(self, config: PolicyConfig, *, with_critic: bool, reference_weights: int) -> CheckpointShape:
        """What a model must have in common with this one to load its checkpoint: sizes, and the frozen weights, which a
        checkpoint does not hold."""
        shape = msgspec.structs.replace(checkpoint.shape_of(config, with_critic), reference_weights=reference_weights)
        if self._lora is None:
            return shape
        return msgspec.structs.replace(
            shape, adapters=self._lora.description, frozen_weights=lora.bit_sum(self._chunks, self._spec)
        )

    def _new_critic(self, learner: LearnerConfig, advantage: GaeAdvantageConfig, temperature: float) -> Network:
        # The critic needs a configuration of its own, because Megatron stores things that belong to one model in it.
        config = policy_config(self._source, learner)
        chunks = [ValueModel(config, self._kernels, chunk, chunk.vp_stage) for chunk in self._chunks]
        for chunk in chunks:
            parallel.check_replicas_equal(chunk)
        learner = msgspec.structs.replace(learner, lr=advantage.critic_lr)
        shapes = msgspec.structs.replace(product_shapes(config), outputs=1)
        return Network(chunks, shapes, learner, temperature, self.clock, replayed=False)

    def _asked_critic(self) -> Network:
        if self._critic is None:
            raise RuntimeError("there is no critic; only algorithm.advantage of kind gae has one")
        return self._critic

    def _optimizer_step(
        self,
        network: Network,
        name: str,
        micro_batches: Sequence[MicroBatch],
        loss: MicroBatchLoss,
        learning_rate: float,
        version: int,
    ) -> TrainedStep:
        tally: Tally = {}

        def share(batch: MicroBatch, output: Any) -> Tensor:
            value, part = loss(batch, output)
            add_to(tally, part)
            return value

        with self._waiting(f"training version {version}"), cuda_means_cpu():
            network.accumulate(micro_batches, share)
            with self.clock.part(Part.OPTIMIZER):
                grad_norm, moved = network.step(learning_rate, version, name)
            reduced, used = self._reduced(tally), self._used(network)
            return TrainedStep(grad_norm, moved, None if reduced is None else reduced | used)

    def _outputs(
        self,
        network: Network,
        micro_batches: Sequence[MicroBatch],
        wanted: Callable[[Any], Tensor],
        temperature: float | None = None,
    ) -> list[Tensor] | list[None]:
        found: list[Tensor] = []
        with self._waiting("evaluating the batch"), cuda_means_cpu():
            network.forward_only(micro_batches, lambda _, output: found.append(wanted(output)), temperature)
        return found if self.on_last_stage else [None] * len(micro_batches)

    def _used(self, network: Network) -> Tally:
        """Return what the routers of all ranks did with a batch, and have them balance its loads; nothing of a critic, or without
        experts."""
        use = network.use
        if use is None or network is self._critic:
            return {}
        for counts in (use.loads, use.differing):
            dist.all_reduce(counts)
        network.balance(use.loads)
        return use.tally()

    def _reduced(self, tally: Tally) -> Tally | None:
        """Return the tally of all data-parallel ranks on the reporting rank, and None on all others."""
        if not self.on_last_stage:
            return None
        group = parallel_state.get_data_parallel_group()
        total = summed(tally, lambda stacked: dist.all_reduce(stacked, group=group))
        return total if self._spec.is_reporter else None
