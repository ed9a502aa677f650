"""The learning rate as a pure function of the training step, so that a resume needs no stored state."""

from asyncrl.core.recipe.custom import CustomScheduleConfig
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.learners.custom.calls import call_schedule, loaded
from asyncrl.learners.custom.inputs import ScheduleInputs


def learning_rate(step: int, steps: int, config: LearnerConfig) -> float:
    """The learning rate of training step ``step``, counted from 0, in a run of ``steps``.

    It rises linearly over ``warmup_steps`` and reaches the peak at the last of them. Then it falls linearly to
    ``lr * min_lr_ratio`` at the last step. A schedule of kind custom is a function of the user's own instead.
    """
    if isinstance(config.schedule, CustomScheduleConfig):
        return call_schedule(
            loaded(config.schedule),
            ScheduleInputs(
                step=step, steps=steps, lr=config.lr, warmup_steps=config.warmup_steps, min_lr_ratio=config.min_lr_ratio
            ),
        )
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    decaying = max(1, steps - 1 - config.warmup_steps)
    done = min(1.0, (step - config.warmup_steps) / decaying)
    return config.lr * (1.0 - (1.0 - config.min_lr_ratio) * done)
