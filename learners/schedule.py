"""The learning rate as a pure function of the training step, so that a resume needs no stored state."""

from asyncrl.core.recipe.schema import LearnerConfig


def learning_rate(step: int, steps: int, config: LearnerConfig) -> float:
    """The learning rate of training step ``step``, counted from 0, in a run of ``steps``.

    It rises linearly over ``warmup_steps`` and reaches the peak at the last of them. Then it falls linearly to
    ``lr * min_lr_ratio`` at the last step.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    decaying = max(1, steps - 1 - config.warmup_steps)
    done = min(1.0, (step - config.warmup_steps) / decaying)
    return config.lr * (1.0 - (1.0 - config.min_lr_ratio) * done)
