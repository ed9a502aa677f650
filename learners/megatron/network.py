"""One network on one rank: its chunks of the pipeline stage, their optimizer, and how micro-batches pass through
them."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.learners.batches.expert_use import ExpertUse
from asyncrl.learners.batches.micro_batch import MicroBatch
from asyncrl.learners.batches.packing import token_multiple
from asyncrl.learners.batches.prefixes import tokens_before
from asyncrl.learners.flops import ProductShapes, backward_flops, forward_flops
from asyncrl.learners.megatron import parallel
from asyncrl.learners.megatron.layers import routing
from asyncrl.learners.megatron.layers.context import part_of
from asyncrl.learners.megatron.layers.log_probabilities import Predictions
from asyncrl.learners.megatron.layers.routing import TokenRouting
from asyncrl.learners.megatron.model import PolicyModel, distribute
from asyncrl.learners.megatron.pipeline import communication
from asyncrl.learners.step_clock import Part, StepClock


class TrainingDiverged(AsyncRLError):
    """The loss or its gradient is not finite. The weights are those before the optimizer step."""


class Network:
    """A trainable network of chunks that have their weights already. All methods are collective.

    Attributes:
        chunks: the chunks of this rank's pipeline stage.
        optimizer: the optimizer of all chunks.
        flops: model FLOPs of all passes so far, counting the whole network over this data-parallel slice's
            micro-batches.
        use: what this rank's routers did in the last pass of :meth:`accumulate`; None if there are no experts.

    Args:
        chunks: see the attribute.
        shapes: sizes of the whole network's matrix products.
        learner: the parallel layout and the optimizer's settings.
        temperature: temperature at which tokens are sampled.
        clock: measures the passes and the optimizer.
        replayed: whether routers take the experts that engines chose.
    """

    def __init__(
        self,
        chunks: Sequence[PolicyModel],
        shapes: ProductShapes,
        learner: LearnerConfig,
        temperature: float,
        clock: StepClock,
        *,
        replayed: bool,
    ) -> None:
        self.chunks, self._shapes, self._learner, self._temperature = chunks, shapes, learner, temperature
        self._clock, self._replayed = clock, replayed
        self.flops = 0
        self.use: ExpertUse | None = None
        self._wrapped, self.optimizer = distribute(chunks, learner)
        self._device = parallel.device()
        # Gradients are already those of the batch's loss, so the token counts that Megatron collects must not divide them again.
        chunks[0].config.finalize_model_grads_func = lambda models, _tokens, **options: finalize_model_grads(models, **options)

    def accumulate(self, micro_batches: Sequence[MicroBatch], loss: Callable[[MicroBatch, Any], Tensor]) -> None:
        """Run the forward and backward pass, and accumulate the gradient of the sum of ``loss``. The last stage calls
        ``loss`` for each micro-batch, in order.

        Args:
            micro_batches: the micro-batches of this data-parallel slice.
            loss: computes the loss of a micro-batch, given the network's output for it.
        """
        with self._clock.part(Part.BACKWARD):
            for chunk in self._wrapped:
                chunk.zero_grad_buffer()
            self.optimizer.zero_grad()
            self.use = self._new_use(micro_batches)
            self._pass(micro_batches, loss, forward_only=False, auxiliary=self._auxiliary(micro_batches))

    @torch.no_grad()
    def forward_only(
        self, micro_batches: Sequence[MicroBatch], see: Callable[[MicroBatch, Any], None], temperature: float | None = None
    ) -> None:
        """Run the forward pass only. The last stage calls ``see`` in order, with each micro-batch and the network's
        output for it.

        Args:
            temperature: the temperature of log-probabilities, where it is not that at which tokens are sampled.
        """
        nothing = torch.zeros((), device=self._device)

        def loss_of_output(batch: MicroBatch, output: Any) -> Tensor:
            see(batch, output)
            return nothing

        with self._clock.part(Part.FORWARD):
            self._pass(micro_batches, loss_of_output, forward_only=True, temperature=temperature)

    def _auxiliary(self, micro_batches: Sequence[MicroBatch]) -> float:
        """Return the factor of the auxiliary loss for each token of the batch: its coefficient, over the batch's tokens, so that
        its gradient is that of the mean over all tokens. Collective."""
        experts = self._learner.experts
        if experts.balance != "aux":
            return 0.0
        tokens = torch.tensor([sum(batch.computed_tokens for batch in micro_batches)], device=self._device)
        dist.all_reduce(tokens, group=parallel_state.get_data_parallel_group())
        return experts.aux_coefficient / tokens.item()

    def balance(self, loads: Tensor) -> None:
        """Change the biases by which routers choose experts, if the recipe says so.

        Args:
            loads: as in :func:`.layers.routing.balance`.
        """
        if self._learner.experts.balance == "bias":
            for chunk in self.chunks:
                routing.balance(chunk.modules(), loads, self._learner.experts.bias_rate)

    def gradient_norm(self) -> float:
        """Return the norm of the accumulated gradient before clipping, the same on every rank."""
        self.optimizer.prepare_grads()
        return float(self.optimizer.get_grad_norm())

    def step(self, learning_rate: float, version: int, loss: str) -> tuple[float, bool]:
        """Update the weights with the accumulated gradient. Return its norm before clipping, which is the same on every
        rank, and whether weights of this rank moved.

        Args:
            learning_rate: the learning rate of the training step.
            version: the policy version being trained, for the error message.
            loss: name of the network that the loss belongs to, for the error message.

        Raises:
            TrainingDiverged: on every rank, before any weight has changed, if the gradient norm is not finite.
        """
        grad_norm = self.gradient_norm()
        if not math.isfinite(grad_norm):
            raise TrainingDiverged(
                f"the gradient norm of the {loss} step that trains version {version} is {grad_norm}; lower learner.lr "
                "(algorithm.advantage.critic_lr for the critic), and look at the loss and importance weights of earlier steps"
            )
        parameters = []
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group["lr_mult"]
            parameters.extend(group["params"])
        clip_grad_by_total_norm_fp32(parameters, self._learner.clip_grad, grad_norm)
        # Without a gradient, momentum and weight decay may still move the weights, unless they are too small to round to.
        before = self._weights() if grad_norm == 0 else []
        self.optimizer.step_with_ready_grads()
        moved = learning_rate > 0 and (grad_norm > 0 or not all(map(torch.equal, before, self._weights())))
        return grad_norm, moved

    def _weights(self) -> list[Tensor]:
        """A copy of the trained weights."""
        return [each.detach().clone() for chunk in self.chunks for each in chunk.parameters() if each.requires_grad]

    def _new_use(self, micro_batches: Sequence[MicroBatch]) -> ExpertUse | None:
        architecture = self.chunks[0].architecture
        layers = sum(architecture.with_experts)
        if not layers:
            return None
        oldest = max(batch.max_staleness for batch in micro_batches)
        return ExpertUse(layers, architecture.experts, oldest, self._device)

    def _routing(self, batch: MicroBatch, places: Tensor, use: ExpertUse | None, auxiliary: float) -> TokenRouting | None:
        if not any(self.chunks[0].architecture.with_experts):
            return None
        if self._learner.tensor_parallel > 1:  # whose ranks divide the sequence
            places = places.chunk(self._learner.tensor_parallel)[parallel_state.get_tensor_model_parallel_rank()]
        return TokenRouting.of(batch, places, use, replayed=self._replayed, auxiliary=auxiliary)

    def _pass(
        self,
        micro_batches: Sequence[MicroBatch],
        loss_of_output: Callable[[MicroBatch, Any], Tensor],
        *,
        forward_only: bool,
        temperature: float | None = None,
        auxiliary: float = 0.0,
    ) -> None:
        temperature = self._temperature if temperature is None else temperature
        use = None if forward_only else self.use
        context = parallel_state.get_context_parallel_group()
        no_tokens = torch.zeros((), dtype=torch.int, device=self._device)

        def forward_step(
            batches: Iterator[MicroBatch], model: torch.nn.Module
        ) -> tuple[Any, Callable[[Any], tuple[Tensor, Tensor, None]]]:
            with self._clock.part(Part.FORWARD):
                return forward(next(batches).to(self._device), model)

        def forward(batch: MicroBatch, model: torch.nn.Module) -> tuple[Any, Callable[[Any], tuple[Tensor, Tensor, None]]]:
            part = part_of(batch, ranks=context.size(), rank=context.rank(), multiple=token_multiple(self._learner))
            part.rows.routing = self._routing(batch, part.places, use, auxiliary)
            output = model(part.token_ids, part.rows, part.positions, part.targets, temperature)

            def loss_of_part(last: Any) -> tuple[Tensor, Tensor, None]:
                # Each context-parallel rank computes the loss of whole rows, but the gradient of only its own tokens.
                with self._clock.part(Part.FORWARD):
                    if isinstance(last, Predictions):
                        whole: Any = Predictions(*(part.whole(values, context) for values in last))
                    else:
                        whole = part.whole(last, context)
                    return loss_of_output(batch, whole), no_tokens, None

            return output, loss_of_part

        with communication(self.chunks[0].config) as arguments:
            get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=[iter(micro_batches) for _ in self._wrapped],
                model=self._wrapped,
                num_microbatches=len(micro_batches),
                # The shape of each tensor is sent ahead of it, so these two values are not used.
                seq_length=1,
                micro_batch_size=1,
                forward_only=forward_only,
                **arguments,
            )
        for batch in micro_batches:
            before = tokens_before(batch.segments, batch.prefixes, batch.preamble)
            described = self._shapes, batch.segments, len(batch.targets), before
            self.flops += forward_flops(*described)
            if not forward_only:
                self.flops += backward_flops(*described)
