"""Rates of a model on a kind of GPU, from what the GPU can do and how much of that engine and learner reach.

It is the roofline of decoding and training: a step of an engine reads the weights once, and the keys and values of its requests;
prompts and training are limited by multiplications.
"""

import msgspec

from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.models.model_shape import ModelShape
from asyncrl.simulation.rates import (
    NOTHING,
    EngineRates,
    LearnerRates,
    PublicationRates,
    Rate,
    Rates,
)

WEIGHT_BYTES, GRADIENT_BYTES = 2, 4
"""Bytes of a weight in bfloat16, and of a gradient when it is added up over ranks."""
ENGINE_BYTES = 4e9
"""What an engine takes of a GPU beside weights and cache, estimated."""
FROZEN = 4
"""Operations for each weight and token where adapters are trained beside it: it has no gradient of its own."""


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of GPU, and how much of it is reached.

    Attributes:
        peak_flops: dense multiplications and additions a second in bfloat16.
        memory_bytes: memory of one.
        memory_bandwidth: bytes a second from that memory.
        learner_mfu: share of the peak that training reaches, by the model's own operations.
        learner_step: seconds of a training step that no token accounts for.
        prefill_mfu: share of the peak that prompts reach.
        decode_bandwidth: share of the bandwidth that decoding reaches.
        engine_step: seconds of each step of an engine beside the GPU's work.
        engine_request: seconds for each request in a step.
        publication_bandwidth: bytes a second at which an engine gets weights.
        reduce_bandwidth: bytes a second at which a rank adds gradients to those of others.
        write, pause: seconds of a publication in which the learner, and an engine, do nothing else.
        switch: seconds for which learner and engines, where they share GPUs, take turns in each training step.
        turn: seconds from turn to turn beside the environment's.
        engine_start, learner_start: seconds from launch.
    """

    peak_flops: Rate
    memory_bytes: Rate
    memory_bandwidth: Rate
    learner_mfu: Rate
    prefill_mfu: Rate
    decode_bandwidth: Rate
    publication_bandwidth: Rate
    reduce_bandwidth: Rate
    learner_step: Rate = NOTHING
    engine_step: Rate = NOTHING
    engine_request: Rate = NOTHING
    write: Rate = NOTHING
    pause: Rate = NOTHING
    switch: Rate = NOTHING
    turn: Rate = NOTHING
    engine_start: Rate = NOTHING
    learner_start: Rate = NOTHING

    def rates(self, shape: ModelShape, recipe: Recipe, mean_tokens: float) -> Rates:
        """Return the rates of a model on these GPUs.

        Args:
            mean_tokens: tokens of an episode on average; attention costs more where they are many.
        """
        learner, engine = self._learner(shape, recipe, mean_tokens), self._engine(shape, recipe)
        lora, parameters = recipe.learner.lora, shape.parameters
        if lora is not None and lora.publish == "adapter":
            parameters = shape.adapter_parameters(lora)
        size = WEIGHT_BYTES * parameters
        moved = Rate(size / self.publication_bandwidth.value, _sources(self.publication_bandwidth))
        return Rates(engine, learner, PublicationRates(self.write, moved, self.pause))

    def _engine(self, shape: ModelShape, recipe: Recipe) -> EngineRates:
        gpus = recipe.generators.engine_workers
        reading = gpus * self.memory_bandwidth.value * self.decode_bandwidth.value
        computing = gpus * self.peak_flops.value * self.prefill_mfu.value
        cached = shape.cache_bytes(WEIGHT_BYTES)
        weights = WEIGHT_BYTES * shape.parameters
        room = gpus * (self.memory_bytes.value * recipe.generators.gpu_memory_share - ENGINE_BYTES) - weights
        read = _sources(self.memory_bandwidth, self.decode_bandwidth, self.engine_step)
        computed = _sources(self.peak_flops, self.prefill_mfu)
        token = 2 * shape.active_parameters / computing
        return EngineRates(
            step=Rate(self.engine_step.value + weights / reading, read),
            request=Rate(self.engine_request.value + token, _sources(self.peak_flops, self.prefill_mfu, self.engine_request)),
            prompt_token=Rate(token, computed),
            context_token=Rate(cached / reading, read),
            cache_tokens=Rate(max(1.0, room // cached), _sources(self.memory_bytes)),
            step_tokens=Rate(8192, "vLLM's default"),
            turn=self.turn,
            start=self.engine_start,
        )

    def _learner(self, shape: ModelShape, recipe: Recipe, mean_tokens: float) -> LearnerRates:
        config, algorithm = recipe.learner, recipe.algorithm
        divided = config.layout.ranks / config.data_parallel
        attention = shape.num_hidden_layers * shape.num_attention_heads * shape.head_size * mean_tokens
        again = 2 if config.recompute == "full" else 0
        weights = (6 if config.lora is None else FROZEN) + again
        operations = weights * shape.active_parameters + (6 + again) * attention
        trained = shape.parameters
        if config.lora is not None:
            trained = shape.adapter_parameters(config.lora)
            operations += (6 + again) * trained
        token = algorithm.epochs * operations / (self.peak_flops.value * self.learner_mfu.value * divided)
        steps = algorithm.epochs * algorithm.minibatches
        gradients = 2 * GRADIENT_BYTES * trained / divided / self.reduce_bandwidth.value
        reduced = gradients if config.data_parallel > 1 else 0.0
        return LearnerRates(
            step=Rate(steps * (self.learner_step.value + reduced), _sources(self.learner_step, self.reduce_bandwidth)),
            token=Rate(token, _sources(self.peak_flops, self.learner_mfu)),
            between=self.switch if config.gpu == "shared" else NOTHING,
            ranks=Rate(config.data_parallel, "the roofline holds for any number"),
            start=self.learner_start,
        )


def _sources(*rates: Rate) -> str:
    return "; ".join(dict.fromkeys(rate.source for rate in rates if rate is not NOTHING))
