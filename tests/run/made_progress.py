"""The readings of a run that live views are shown."""

from asyncrl.run.measures.bottleneck import Bottleneck, Kind
from asyncrl.run.measures.progress import RunProgress
from asyncrl.run.measures.summary import PlayedEvaluation
from asyncrl.run.measures.time_split import Shares

PROGRESS = RunProgress(
    step=12,
    steps=60,
    version=12,
    reward=0.512,
    generator_tokens_per_s=12_345,
    learner_tokens_per_s=23_456,
    trajectories_per_s=88.2,
    sampled_tokens=7_168,
    staleness_mean=1.21,
    staleness_max=3,
    staleness_bound=4,
    running=20,
    committed=7,
    publish_seconds=0.043,
    pause_seconds=0.012,
    idle_generators=0.034,
    idle_learner=0.31,
    evaluation=PlayedEvaluation(10, 10, 12, 0.61),
    shares=Shares(training=0.69, waiting=0.31, idle=0.034),
    pipeline_depth=2,
    bottleneck=Bottleneck(Kind.LEARNER, 0.7, "learner-bound: the learner trained for 70 % of the time"),
    eta_s=125,
)
