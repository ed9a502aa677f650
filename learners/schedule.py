"""The learning rate as a pure function of the step, so that nothing needs to be stored to resume it."""

from asyncrl.core.recipe.schema import LearnerConfig


def learning_rate(step: int, steps: int, config: LearnerConfig) -> float:
    """Rate of optimizer step ``step``, counted from 0, of ``steps``.

    Linear warm-up over ``warmup_steps``, the peak at the last of them; then linear to ``lr * min_lr_ratio`` at the last step.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    decaying = max(1, steps - 1 - config.warmup_steps)
    done = min(1.0, (step - config.warmup_steps) / decaying)
    return config.lr * (1.0 - (1.0 - config.min_lr_ratio) * done)
