"""What a training step took, made up for tests."""

from asyncrl.core.measures.time_split import LearnerTime, TimeSplit
from asyncrl.run.measures.measure_file import StepMeasure

LEARNER = LearnerTime(waiting=1.0, training=4.0, data=0.5, forward=1.5, backward=1.5, optimizer=0.5, writing=0.25, delivering=0.5)


def measure(step: int) -> StepMeasure:
    counted = {"rows": 2, "computed_tokens": 9, "masked": 0, "filtered": 0, "complete": 1, "depth": 1, "engines": 1, "cores": 2}
    stale = {"staleness_mean": 0.5, "staleness_max": 1, "delivery_s": None, "pause_s": 0.0, "device": "cpu"}
    return StepMeasure(step=step, time=TimeSplit(seconds=8.0, learner=LEARNER, trained_tokens=7), **counted, **stale)
