"""Predictions that were made up: how fast and how stale a recipe would be, and nothing else."""

from asyncrl.planning.prediction import Figure, Prediction


def made_prediction(speed: float, age: float, *, name: str = "", gpus: int = 0, wide: float = 0.01) -> Prediction:
    """Return a prediction of ``speed`` trajectories a second and a mean staleness of ``age``.

    Args:
        wide: how far the ends of the intervals are from their means, as a share of these.
    """

    def figure(mean: float) -> Figure:
        return Figure(mean, mean * (1 - wide), mean * (1 + wide))

    nothing = figure(0.0)
    return Prediction(
        name=name,
        overrides=(),
        gpus=gpus,
        trajectories_per_s=figure(speed),
        trained_tokens_per_s=nothing,
        step_s=nothing,
        idle_generators=nothing,
        idle_learner=nothing,
        staleness_mean=figure(age),
        staleness_max=4,
        histogram={},
        masked=nothing,
        dropped=nothing,
        length_bias=nothing,
        depth=1,
        memory={},
        bottleneck="",
        start_s=0.0,
        notes=(),
    )
