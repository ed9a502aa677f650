"""One rank's model and optimizer, and the step that moves them."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.publication import Shard
from asyncrl.core.recipe.algorithm import NoKl
from asyncrl.core.recipe.schema import Recipe
from learners.checkpoint_manifest import Progress
from learners.megatron import checkpoint, hugging_face, parallel, placement
from learners.megatron.context import part_of
from learners.megatron.cpu_compat import cuda_means_cpu
from learners.megatron.log_probabilities import Predictions
from learners.megatron.model import build, distribute
from learners.megatron.model_config import policy_config
from learners.megatron.pipeline import communication
from learners.megatron.reference import ReferenceWeights
from learners.micro_batch import MicroBatch
from learners.rank import RankSpec
from learners.tally import Tally, add_to, summed

MicroBatchLoss = Callable[[MicroBatch, Tensor, Tensor], tuple[Tensor, Tally]]
"""Of a micro-batch, the log-probabilities (with gradient) and entropies of its sampled tokens: its share of the batch's loss, and
its tally."""


class TrainingDiverged(AsyncRLError):
    """Loss or gradient is not finite. The weights are those before the step."""


class TrainedStep(msgspec.Struct, frozen=True):
    """What one optimizer step did.

    Attributes:
        grad_norm: before clipping, of the whole model; the same on every rank.
        tally: of the whole batch, on the reporting rank; None on the others.
    """

    grad_norm: float
    tally: Tally | None


class Trainer:
    """The policy on one rank. Construction and :meth:`step` are collective: all ranks make the same calls.

    Args:
        recipe: of the run.
        model_path: Hugging Face folder the weights are loaded from.
        spec: where this rank stands.

    Raises:
        RecipeError: if the model cannot be built or loaded as asked.
        DeadlineExceeded: if another rank does not come up or, later, does not take part in a step.
    """

    def __init__(self, recipe: Recipe, model_path: Path, spec: RankSpec) -> None:
        self._recipe, self._spec, self._source = recipe, spec, model_path
        config = policy_config(model_path, recipe.learner)
        parallel.initialise(spec, recipe.deadlines, recipe.seed, recipe.learner.virtual_pipeline)
        self._device = parallel.device()
        with parallel.named_wait(spec, "building the model", recipe.deadlines.step), cuda_means_cpu():
            self._chunks = build(config, recipe.learner)
            with hugging_face.HuggingFaceTensors(model_path) as tensors:
                placement.load(self._chunks, spec, tensors)
            for chunk in self._chunks:
                parallel.check_replicas_equal(chunk)
            self._wrapped, self._optimizer = distribute(self._chunks, recipe.learner)
        self._state = checkpoint.LearnerState(self._chunks, self._optimizer, checkpoint.shape_of(config), spec)
        self._reference: ReferenceWeights | None = None
        if not isinstance(recipe.algorithm.kl, NoKl):
            self._reference = ReferenceWeights([parameter for chunk in self._chunks for parameter in chunk.parameters()])
        # Gradients are already those of the batch's loss, so the token counts that Megatron collects must not divide them again.
        config.transformer.finalize_model_grads_func = lambda models, _tokens, **options: finalize_model_grads(models, **options)

    def step(self, micro_batches: Sequence[MicroBatch], loss: MicroBatchLoss, learning_rate: float, version: int) -> TrainedStep:
        """One optimizer step over this data-parallel slice's micro-batches, as many as every other slice has.

        Raises:
            TrainingDiverged: on every rank, before any weight has changed, if the gradient norm is not finite.
        """
        with parallel.named_wait(self._spec, f"training version {version}", self._recipe.deadlines.step), cuda_means_cpu():
            tally = self._accumulate_gradients(micro_batches, loss)
            self._optimizer.prepare_grads()
            grad_norm = float(self._optimizer.get_grad_norm())
            if not math.isfinite(grad_norm):
                raise TrainingDiverged(
                    f"the gradient norm of the step that trains version {version} is {grad_norm}; lower learner.lr, and look at "
                    "the loss and importance weights of the steps before"
                )
            parameters = []
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate * group["lr_mult"]
                parameters.extend(group["params"])
            clip_grad_by_total_norm_fp32(parameters, self._recipe.learner.clip_grad, grad_norm)
            self._optimizer.step_with_ready_grads()
            return TrainedStep(grad_norm, self._reduce(tally) if parallel_state.is_pipeline_last_stage() else None)

    @torch.no_grad()
    def log_probabilities(self, micro_batches: Sequence[MicroBatch]) -> list[Tensor] | list[None]:
        """Of each micro-batch's sampled tokens (float32 [n], nats) under the weights as they are; None off the last stage."""
        found: list[Tensor] = []

        def keep(_: MicroBatch, logp: Tensor, __: Tensor) -> Tensor:
            found.append(logp)
            return logp.new_zeros(())

        with parallel.named_wait(self._spec, "looking over the batch", self._recipe.deadlines.step), cuda_means_cpu():
            self._pass(micro_batches, keep, forward_only=True)
        return found if parallel_state.is_pipeline_last_stage() else [None] * len(micro_batches)

    def reference_log_probabilities(self, micro_batches: Sequence[MicroBatch]) -> list[Tensor] | list[None]:
        """As :meth:`log_probabilities`, under the weights this trainer was constructed with.

        Raises:
            RuntimeError: if the recipe asks for no reference, so that none was kept.
        """
        if self._reference is None:
            raise RuntimeError("no reference policy is kept with algorithm.kl of kind none")
        with self._reference.in_place():
            return self.log_probabilities(micro_batches)

    @property
    def on_last_stage(self) -> bool:
        """Whether this rank's pipeline stage has the log-probabilities."""
        return parallel_state.is_pipeline_last_stage()

    def agreed(self, value: float) -> float:
        """The reporting rank's ``value``, on all ranks; all call this together."""
        with parallel.named_wait(self._spec, "looking over the batch", self._recipe.deadlines.step):
            shared = torch.tensor(value if self._spec.is_reporter else 0.0, dtype=torch.float64, device=self._device)
            dist.all_reduce(shared)
            return shared.item()

    def added_over_data(self, values: Tensor) -> Tensor:
        """The sum over the data-parallel ranks; all call this together."""
        with parallel.named_wait(self._spec, "looking over the batch", self._recipe.deadlines.step):
            total = values.to(self._device)
            dist.all_reduce(total, group=parallel_state.get_data_parallel_group())
            return total.cpu()

    def gathered_over_data(self, values: Tensor) -> Tensor:
        """Those of all data-parallel ranks end to end; all call this together, with as many."""
        with parallel.named_wait(self._spec, "looking over the batch", self._recipe.deadlines.step):
            group = parallel_state.get_data_parallel_group()
            parts = [torch.empty_like(values, device=self._device) for _ in range(group.size())]
            dist.all_gather(parts, values.to(self._device), group=group)
            return torch.cat(parts).cpu()

    def shards(self) -> Iterator[Shard]:
        """See :func:`.placement.shards`."""
        return placement.shards(self._chunks, self._spec)

    def save_pretrained(self, folder: Path) -> None:
        """See :func:`.hugging_face.save_pretrained`."""
        with parallel.named_wait(self._spec, "saving the model", self._recipe.deadlines.step):
            hugging_face.save_pretrained(self.shards(), self._source, folder)

    def start_checkpoint(self, folder: Path, progress: Progress) -> checkpoint.Saving:
        """See :func:`.checkpoint.start_saving`."""
        copying = f"copying version {progress.version}"
        with parallel.named_wait(self._spec, copying, self._recipe.deadlines.step), cuda_means_cpu():
            return checkpoint.start_saving(folder, self._state, progress)

    def finish_checkpoint(self, saving: checkpoint.Saving) -> None:
        """See :meth:`.checkpoint.Saving.finish`."""
        with parallel.named_wait(self._spec, "writing a checkpoint", self._recipe.deadlines.step):
            saving.finish(self._recipe.deadlines.step)

    def load_checkpoint(self, folder: Path) -> Progress:
        """See :func:`.checkpoint.load`."""
        with parallel.named_wait(self._spec, f"loading {folder}", self._recipe.deadlines.step), cuda_means_cpu():
            return checkpoint.load(folder, self._state)

    def close(self) -> None:
        """Leave the group of ranks."""
        parallel.close()

    def _accumulate_gradients(self, micro_batches: Sequence[MicroBatch], loss: MicroBatchLoss) -> Tally:
        """Forward and backward over all micro-batches; the tally of this slice, filled on the last stage."""
        tally: Tally = {}

        def of_tokens(batch: MicroBatch, logp: Tensor, entropy: Tensor) -> Tensor:
            share, part = loss(batch, logp, entropy)
            add_to(tally, part)
            return share

        for chunk in self._wrapped:
            chunk.zero_grad_buffer()
        self._optimizer.zero_grad()
        self._pass(micro_batches, of_tokens, forward_only=False)
        return tally

    def _pass(
        self, micro_batches: Sequence[MicroBatch], loss: Callable[[MicroBatch, Tensor, Tensor], Tensor], *, forward_only: bool
    ) -> None:
        """All micro-batches through the pipeline; ``loss`` is called on the last stage, in their order."""
        temperature = self._recipe.sampling.temperature
        no_tokens = torch.zeros((), dtype=torch.int, device=self._device)

        def forward_step(batches: Iterator[MicroBatch], model: torch.nn.Module) -> tuple[Predictions | Tensor, Callable]:
            batch = next(batches).to(self._device)
            part = part_of(
                batch.token_ids,
                batch.lengths,
                batch.positions,
                batch.targets,
                ranks=self._spec.context,
                rank=self._spec.context_rank,
                multiple=self._spec.tensor,
            )
            output = model(part.token_ids, part.rows, part.positions, part.targets, temperature)

            def of_predictions(predictions: Predictions) -> tuple[Tensor, Tensor, None]:
                # Each context-parallel rank computes the whole loss, as one of whole rows, and the gradient of its own tokens.
                group = parallel_state.get_context_parallel_group()
                logp, entropy = (part.whole(values, group) for values in predictions)
                return loss(batch, logp, entropy), no_tokens, None

            return output, of_predictions

        with communication(self._chunks[0].config) as arguments:
            get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=[iter(micro_batches) for _ in self._wrapped],
                model=self._wrapped,
                num_microbatches=len(micro_batches),
                # Shapes are sent ahead of each tensor, so these two describe none.
                seq_length=1,
                micro_batch_size=1,
                forward_only=forward_only,
                **arguments,
            )

    def _reduce(self, tally: Tally) -> Tally | None:
        group = parallel_state.get_data_parallel_group()
        total = summed(tally, lambda stacked: dist.all_reduce(stacked, group=group))
        return total if self._spec.is_reporter else None
