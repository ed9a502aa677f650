"""The metrics that the run itself measures; the learner's are in ``asyncrl.learners.metrics``. "Step" means training step."""

from asyncrl.core.measures.metrics import Metric, Reduction
from asyncrl.core.trajectory import StopReason

REWARD = Metric("reward/mean", "reward", Reduction.MEAN, "mean final reward of the episodes of the batch")
GREEDY_REWARD = Metric(
    "reward/greedy_mean", "reward", Reduction.MEAN, "mean final reward of the batch's greedy episodes, which are not trained"
)
MODEL_SCORE = Metric("reward/model_mean", "reward", Reduction.MEAN, "mean of the reward model's scores since the last step")
MODEL_SECONDS = Metric("reward/model_seconds", "s", Reduction.MEAN, "how long a finished episode waited for its score")
TEACHER_SECONDS = Metric(
    "teacher/seconds", "s", Reduction.MEAN, "how long a finished episode waited for the teacher's probabilities"
)
ZERO_VARIANCE = Metric(
    "reward/zero_variance_groups", "share", Reduction.MEAN, "groups whose rewards are all equal, up to rounding"
)
EPISODE_TOKENS = Metric(
    "episode/tokens", "tokens", Reduction.MEAN, "length of the trained episodes, prompt and tool responses included"
)
STOPPED = {
    reason: Metric(f"episode/stopped_{reason}", "share", Reduction.MEAN, f"trained episodes whose stop reason was {reason}")
    for reason in StopReason
}
TOOL_OUTPUT_CUT = Metric(
    "episode/tool_output_cut",
    "characters",
    Reduction.SUM,
    "characters over environment.max_tool_output that were cut from outputs of tools since the last step",
)
GENERATED_RATE = Metric("generators/tokens_per_s", "tokens/s", Reduction.SUM, "tokens sampled by all engines since the last step")
FINISHED_RATE = Metric(
    "generators/episodes_per_s", "episodes/s", Reduction.SUM, "episodes played for training since the last step, trained or not"
)
TRAINED_RATE = Metric("learner/tokens_per_s", "tokens/s", Reduction.SUM, "tokens of the batch over the time since the last step")
COMPUTED_RATE = Metric(
    "learner/computed_tokens_per_s",
    "tokens/s",
    Reduction.SUM,
    "like learner/tokens_per_s, but a prefix that rows share counts as often as it is computed",
)
TRAJECTORY_RATE = Metric(
    "run/trajectories_per_s", "trajectories/s", Reduction.SUM, "episodes trained over the time since the last step"
)
VERSIONS_SAMPLED = Metric(
    "generators/versions_sampled", "versions", Reduction.MIN, "policy versions each engine has sampled with"
)
TOOL_TIME = Metric(
    "episode/outside_engine",
    "share",
    Reduction.MEAN,
    "share of the running episodes' time spent outside engines, in tools and environments",
)
HELD_BACK = Metric(
    "generators/held_back", "share", Reduction.MEAN, "share of time engines had room for a group, but got no ticket"
)
ENGINE_CPU = Metric(
    "generators/engine_cpu_s_per_1k_tokens",
    "s",
    Reduction.MEAN,
    "processor time of the engines' processes for each thousand tokens sampled since the last step",
)
FRONT_END_CPU = Metric(
    "generators/front_end_cpu_s_per_1k_tokens",
    "s",
    Reduction.MEAN,
    "the same of the generators' own processes: chat template, tool calls, environments, hand-over of episodes",
)
EPISODE_LIMIT = Metric(
    "generators/episode_limit",
    "episodes",
    Reduction.SUM,
    "episodes that all engines together may play at once; falls below generators.max_running when key-value cache is short",
)
CORES_BUSY = Metric(
    "run/cores_busy", "share", Reduction.MEAN, "share of the driver's processor cores that were busy with anything"
)
PIPELINE_DEPTH = Metric(
    "buffer/pipeline_depth", "training steps", Reduction.MEAN, "experience that may be outstanding ahead of the learner"
)
TUNE_FORESEEN = Metric(
    "tune/foreseen", "1", Reduction.MEAN, "by how much a plan said that a turned knob multiplies trained tokens a second"
)
TUNE_BROUGHT = Metric("tune/brought", "1", Reduction.MEAN, "by how much it did")
RUNNING = Metric("buffer/running_groups", "groups", Reduction.SUM, "groups being generated")
COMMITTED = Metric("buffer/committed_groups", "groups", Reduction.SUM, "groups waiting to be trained")
FILTERED = Metric(
    "buffer/filtered_groups",
    "share",
    Reduction.MEAN,
    "share of the groups since the last step that were complete and that a filter left out of training",
)
PAYLOAD = Metric("buffer/payload_bytes", "bytes", Reduction.SUM, "encoded trajectories held")
PROBE_MEAN = Metric(
    "publish/probe_mean_gap",
    "nats",
    Reduction.MEAN,
    "mean difference of log-probabilities between learner and engine in the last probe, with the same version",
)
PROBE_WORST = Metric("publish/probe_worst_gap", "nats", Reduction.MAX, "the largest such difference of a single token")
PUBLISH_WRITE = Metric("publish/write_seconds", "s", Reduction.MAX, "time to write the version that the step made")
PUBLISH_DELIVERY = Metric(
    "publish/delivery_seconds", "s", Reduction.MAX, "time until every engine had acknowledged the last published version"
)
PUBLISH_PAUSE = Metric(
    "publish/pause_seconds", "s", Reduction.MAX, "how long the last publication kept an engine from generating"
)
EVALUATION_REWARD = Metric("evaluation/reward", "reward", Reduction.MEAN, "mean reward on held-out tasks")


def evaluation_pass(k: int) -> Metric:
    """The metric of pass@k on held-out tasks."""
    meaning = f"pass@{k}: the probability that at least one of {k} episodes of a held-out task reaches evaluation.passing_reward"
    return Metric(f"evaluation/pass_at_{k}", "share", Reduction.MEAN, meaning)


def generated_by(pool: str) -> Metric:
    """The metric of the tokens that one of several pools generates."""
    meaning = (
        f"tokens sampled by the engines of pool `{pool}`, over the time since the last step; only with several pools that train"
    )
    return Metric(f"generators/{pool}/tokens_per_s", "tokens/s", Reduction.SUM, meaning)


def evaluation_of(member: str) -> Metric:
    """The metric of the evaluation of one member of a mixture of environments."""
    meaning = f"mean reward on held-out tasks of member `{member}` of a mixture of environments"
    return Metric(f"evaluation/{member}/reward", "reward", Reduction.MEAN, meaning)


EVALUATION_OLDEST = Metric(
    "evaluation/oldest_version", "version", Reduction.MAX, "oldest policy version that sampled a token of the evaluation"
)
EVALUATION_NEWEST = Metric(
    "evaluation/newest_version", "version", Reduction.MAX, "newest policy version that sampled a token of the evaluation"
)
EVALUATION_SKIPPED = Metric(
    "evaluation/skipped",
    "evaluations",
    Reduction.MAX,
    "evaluations left out so far, recorded at the version whose evaluation was due: another was still being played, its episodes "
    "were played by later versions because generators had died, or the run was killed",
)
EVALUATION_TURNS = Metric("evaluation/turns", "turns", Reduction.MEAN, "mean model turns on held-out tasks")
