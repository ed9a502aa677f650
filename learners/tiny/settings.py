"""The settings of the tiny model's warm-up."""

import msgspec


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the tiny model's warm-up.

    Attributes:
        impatience: how often the demonstrator skips an addition. Above one half, a greedy model always skips.
        steps: optimizer steps. The learning rates rise for ``lr_steps``, and fall to zero in the second half.
        matrix_lr: learning rate of Muon.
        lr: learning rate of AdamW.
        measure_every: optimizer steps between measurements.
        skill: share of the tasks without additions that the model must solve greedily in the end.
        threads: CPU threads; their number influences the result.
        training_tasks, held_out_tasks: number of tasks to train on, and of other tasks to measure on.
    """

    impatience: float = 0.75
    steps: int = 140
    lr_steps: int = 20
    batch_size: int = 64
    matrix_lr: float = 0.04
    lr: float = 3e-3
    measure_every: int = 20
    skill: float = 0.8
    threads: int = 2
    training_tasks: int = 6000
    held_out_tasks: int = 300
