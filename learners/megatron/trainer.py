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
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Shard
from asyncrl.core.recipe.schema import Recipe
from learners.megatron import checkpoint, hugging_face, parallel, placement
from learners.megatron.cpu_compat import cuda_means_cpu
from learners.megatron.log_probabilities import token_log_probabilities
from learners.megatron.model import build, distribute
from learners.megatron.model_config import policy_config
from learners.megatron.packed_rows import PackedRows
from learners.megatron.pipeline import communication
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

    def start_checkpoint(self, folder: Path, version: PolicyVersion) -> checkpoint.Saving:
        """See :func:`.checkpoint.start_saving`."""
        with parallel.named_wait(self._spec, f"copying version {version}", self._recipe.deadlines.step), cuda_means_cpu():
            return checkpoint.start_saving(folder, self._state, version)

    def finish_checkpoint(self, saving: checkpoint.Saving) -> None:
        """See :meth:`.checkpoint.Saving.finish`."""
        with parallel.named_wait(self._spec, "writing a checkpoint", self._recipe.deadlines.step):
            saving.finish(self._recipe.deadlines.step)

    def load_checkpoint(self, folder: Path) -> PolicyVersion:
        """See :func:`.checkpoint.load`."""
        with parallel.named_wait(self._spec, f"loading {folder}", self._recipe.deadlines.step), cuda_means_cpu():
            return checkpoint.load(folder, self._state)

    def close(self) -> None:
        """Leave the group of ranks."""
        parallel.close()

    def _accumulate_gradients(self, micro_batches: Sequence[MicroBatch], loss: MicroBatchLoss) -> Tally:
        """Forward and backward over all micro-batches; the tally of this slice, filled on the last stage."""
        tally: Tally = {}
        temperature = self._recipe.sampling.temperature
        no_tokens = torch.zeros((), dtype=torch.int, device=self._device)

        def forward_step(batches: Iterator[MicroBatch], model: torch.nn.Module) -> tuple[Tensor, Callable[[Tensor], tuple]]:
            batch = next(batches).to(self._device)
            output = model(batch.token_ids, PackedRows.of(batch.lengths, self._device), batch.positions)

            def of_logits(logits: Tensor) -> tuple[Tensor, Tensor, None]:
                group = parallel_state.get_tensor_model_parallel_group()
                logp, entropy = token_log_probabilities(logits, batch.targets, temperature, group)
                share, part = loss(batch, logp, entropy)
                add_to(tally, part)
                return share, no_tokens, None

            return output, of_logits

        for chunk in self._wrapped:
            chunk.zero_grad_buffer()
        self._optimizer.zero_grad()
        with communication(self._chunks[0].config) as arguments:
            get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=[iter(micro_batches) for _ in self._wrapped],
                model=self._wrapped,
                num_microbatches=len(micro_batches),
                # Shapes are sent ahead of each tensor, so these two describe none.
                seq_length=1,
                micro_batch_size=1,
                forward_only=False,
                **arguments,
            )
        return tally

    def _reduce(self, tally: Tally) -> Tally | None:
        group = parallel_state.get_data_parallel_group()
        total = summed(tally, lambda stacked: dist.all_reduce(stacked, group=group))
        return total if self._spec.is_reporter else None
