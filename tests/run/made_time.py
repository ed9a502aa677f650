"""Times of training steps that have given shares."""

from asyncrl.core.measures.time_split import GeneratorTime, LearnerTime, TimeSplit


def made_time(
    *,
    training: float = 0.0,
    waiting: float = 0.0,
    publishing: float = 0.0,
    delivering: float = 0.0,
    optimizer: float = 0.0,
    idle: float = 0.0,
    paused: float = 0.0,
    held_back: float = 0.0,
    evaluating: float = 0.0,
    tools: float = 0.0,
    scoring: float = 0.0,
    cores: float = 0.0,
) -> TimeSplit:
    """One second with these shares; ``idle`` is that of the generators."""
    learner = LearnerTime(
        training=training, waiting=waiting, writing=publishing - delivering, delivering=delivering, optimizer=optimizer
    )
    generators = GeneratorTime(
        sampling=1 - idle - evaluating,
        evaluating=evaluating,
        paused=paused,
        nothing=idle - paused,
        held_back=held_back,
        requests=1 - tools,
        episodes=1.0,
        scores=scoring / (1 - scoring),
    )
    return TimeSplit(seconds=1.0, learner=learner, generators=generators, cores=cores)
