"""How much memory the two loops of ``asyncrl bench gpu`` need, by estimate, and so what of them fits on a GPU."""

from asyncrl.bench.gpu.settings import ModelSize, TrainingSettings
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.run.models.model_shape import ModelShape
from asyncrl.run.nodes.process_memory import GPU_WORK_BYTES, gpu_bytes

PLAIN_STATE_BYTES = 16
"""Bytes a weight that the plain loop keeps: float32 weights, gradient and two moments."""
PLAIN_ACTIVATION_BYTES = 73
"""Bytes that Hugging Face's model keeps of each token, layer and hidden unit for its backward pass: under autocast, norms and the
activation are float32, and what is cast is kept twice."""
PLAIN_LOGIT_BYTES = 14
"""Bytes a logit: bfloat16 and float32, its exponential, and the product with it."""
PLAIN_SHARE = 0.9
"""The share of a GPU's memory that the plain loop is planned to take, since the code is not ours and the estimate rougher."""
SAMPLED = 3 / 4
"""The share of a row's tokens that are sampled, for which the plain loop computes logits."""


def learner_bytes(size: ModelSize, settings: TrainingSettings, **options: str) -> int:
    """Bytes of GPU memory that a learner of one rank takes; ``options`` are keys of the recipe's learner."""
    learner = LearnerConfig(lr=0.0, dtype="bfloat16", micro_batch_tokens=settings.micro_batch_tokens, **options)  # type: ignore[arg-type]
    return gpu_bytes(learner, _shape(size))


def plain_bytes(size: ModelSize, tokens: int) -> int:
    """Bytes of GPU memory that the plain loop takes with micro-batches of so many tokens, padding included."""
    state = (PLAIN_STATE_BYTES + 2) * size.parameters  # and a copy of the weights in bfloat16, which autocast keeps
    activations = size.layers * size.hidden * PLAIN_ACTIVATION_BYTES
    return state + int(tokens * (activations + SAMPLED * size.vocabulary * PLAIN_LOGIT_BYTES)) + GPU_WORK_BYTES


def recomputed(size: ModelSize, settings: TrainingSettings, there: int | None) -> dict[str, str] | None:
    """Options with which a learner fits into ``there`` bytes, or None if none does. Without a GPU, it fits."""
    choices: tuple[dict[str, str], ...] = ({}, {"recompute": "full"})
    return next((each for each in choices if there is None or learner_bytes(size, settings, **each) <= there), None)


def plain_rows(size: ModelSize, settings: TrainingSettings, there: int | None) -> int:
    """How many rows of a micro-batch the plain loop has room for in ``there`` bytes, at most as many as the settings say."""
    rows = settings.plain_rows
    while rows and there is not None and plain_bytes(size, rows * settings.row_tokens) > PLAIN_SHARE * there:
        rows -= 1
    return rows


def _shape(size: ModelSize) -> ModelShape:
    return ModelShape(
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        head_dim=size.head_dim,
        intermediate_size=size.feed_forward,
        vocab_size=size.vocabulary,
        max_position_embeddings=1,
        tie_word_embeddings=size.tied,
    )
