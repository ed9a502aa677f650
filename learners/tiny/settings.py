"""The settings of the tiny model's warm-up. What depends on the environment comes from its lessons."""

import msgspec

CONTEXT_LENGTH = 1024
"""The model's context in tokens."""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the model.

    Attributes:
        entries: of its vocabulary; None for those of its tokenizer, padded so that they split evenly over tensor-parallel ranks.
        context: in tokens.
    """

    hidden: int = 128
    layers: int = 2
    heads: int = 4
    key_value_heads: int = 2
    head: int = 32
    feed_forward: int = 384
    entries: int | None = None
    context: int = CONTEXT_LENGTH


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the tiny model's warm-up.

    Attributes:
        steps: optimizer steps; None means as many as the lessons of all environments ask for together. The learning rates
            rise for ``lr_steps``, and fall to zero in the second half.
        matrix_lr: learning rate of Muon.
        lr: learning rate of AdamW.
        measure_every: optimizer steps between measurements.
        skill: share of the tasks without temptation that the model must solve greedily in the end.
        threads: CPU threads; their number influences the result.
        training_tasks: tasks of each environment to train on; None means as many as its lessons ask for.
        held_out_tasks: other tasks of each environment, to measure on.
        size: of the model.
    """

    steps: int | None = None
    lr_steps: int = 20
    batch_size: int = 64
    matrix_lr: float = 0.04
    lr: float = 3e-3
    measure_every: int = 20
    skill: float = 0.8
    threads: int = 2
    training_tasks: int | None = None
    held_out_tasks: int = 300
    size: Size = Size()
