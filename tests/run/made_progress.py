"""The readings of a run that live views are shown."""

from asyncrl.core.measures.time_split import GeneratorTime, LearnerTime, TimeSplit
from asyncrl.run.measures.bottleneck import Bottleneck, Kind
from asyncrl.run.measures.progress import RunProgress
from asyncrl.run.measures.summary import PlayedEvaluation

PROGRESS = RunProgress(
    step=12,
    steps=60,
    version=12,
    reward=0.512,
    time=TimeSplit(
        seconds=10.0,
        learner=LearnerTime(training=6.9, waiting=3.1),
        generators=GeneratorTime(sampling=9.66, tools=0.34),
        trajectories=882,
        trained_tokens=234_560,
        generated_tokens=123_450,
    ),
    sampled_tokens=7_168,
    staleness_mean=1.21,
    staleness_max=3,
    staleness_bound=4,
    running=20,
    committed=7,
    delivery_s=0.043,
    pause_s=0.012,
    evaluation=PlayedEvaluation(10, 10, 12, 0.61),
    pipeline_depth=2,
    bottleneck=Bottleneck(Kind.LEARNER, 0.7, "learner-bound: the learner trained for 70 % of the time"),
    eta_s=125,
)
