"""Every metric of the learner: name, unit, reduction and meaning.

Unless said otherwise, a mean is over the sampled tokens in the loss of the whole batch. Log-ratios are natural
logarithms of probabilities at the recipe's sampling temperature. ``k3`` is the estimator ``r - 1 - log r`` of the KL
divergence from the policy that sampled (Schulman 2020, "Approximating KL divergence"): it is unbiased when ``r`` is
that policy's likelihood ratio, and never negative.
"""

from collections.abc import Mapping

from asyncrl.core.measures.gap_cause import GapEvidence
from asyncrl.core.measures.metrics import Metric, Reduction


def _mean(name: str, unit: str, meaning: str) -> Metric:
    return Metric(name, unit, Reduction.MEAN, meaning)


def _sum(name: str, unit: str, meaning: str) -> Metric:
    return Metric(name, unit, Reduction.SUM, meaning)


POLICY_LOSS = _sum("loss/policy", "1", "the loss that was minimised; the mean over the optimizer steps of the batch")
VALUE_LOSS = _sum("critic/loss", "1", "the loss of the critic; the mean over the optimizer steps of the batch")
VALUE_MEAN = _mean("critic/value_mean", "1", "the critic's values before the training step")
RETURN_MEAN = _mean("critic/return_mean", "1", "the returns that the critic learns")
RETURN_SQUARE_MEAN = _mean("critic/return_square_mean", "1", "square of the returns that the critic learns")
VALUE_ERROR = _mean("critic/square_error_mean", "1", "square of value minus return, before the training step")
VALUE_CLIP_FRACTION = _mean("critic/clip_fraction", "1", "share of tokens whose gradient algorithm.advantage.value_clip removed")
EXPLAINED_VARIANCE = _mean(
    "critic/explained_variance", "1", "1 - square error / variance of the returns; 1 for a perfect critic, 0 for a constant one"
)
CRITIC_GRAD_NORM = _mean("critic/grad_norm", "1", "gradient norm before clipping; the mean over the batch's optimizer steps")

OVERLONG_PENALTY = _mean("reward/overlong_penalty_mean", "1", "reward that algorithm.overlong took from the batch's episodes")

ENTROPY = _mean("loss/entropy", "nats", "entropy of the policy's next-token distribution")
CLIP_FRACTION = _mean(
    "loss/clip_fraction", "1", "share of tokens whose gradient the clip removed, or the limit of +-20 on log-ratios"
)
KL_ANCHOR_THETA = _mean(
    "loss/kl_anchor_theta",
    "nats",
    "k3 from the anchor policy of the loss to the policy being optimised, times the importance weight, over tokens that the "
    "correction has not left out",
)

IMPORTANCE_WEIGHT = _mean(
    "correction/importance_weight_mean", "1", "importance weight as applied: truncated, and 0 where rejected"
)
MASKED_FRACTION = _mean("correction/masked_fraction", "1", "share of tokens left out because of their importance weight")
REJECTED_FRACTION = _mean("correction/rejected_fraction", "1", "share of tokens left out by a rejection criterion")
TRUNCATED_FRACTION = _mean("correction/truncated_fraction", "1", "share of tokens whose importance weight was truncated")
RATIO_MEAN = _mean("correction/ratio_mean", "1", "proximal / behaviour probability, not truncated; 1 in expectation")
RATIO_SQUARE_MEAN = _mean("correction/ratio_square_mean", "1", "square of proximal / behaviour probability, not truncated")
EFFECTIVE_SAMPLE_SIZE = _mean(
    "correction/ess", "1", "effective sample size as a share: ratio_mean**2 / ratio_square_mean (Kish 1965); 1 on policy"
)

LOGPROB_GAP = _mean(
    "mismatch/logprob_gap_mean_abs",
    "nats",
    "|learner - engine| log-probability, over tokens sampled by the version being trained: how far the implementations differ",
)
ONE_VERSION_GAP = _mean(
    "mismatch/one_version_gap_mean_abs",
    "nats",
    "|learner - engine| log-probability, over tokens in rows that the version being trained sampled alone: no keys and values of "
    "older weights behind them",
)
TURN_BEGIN_GAP = _mean(
    "mismatch/turn_begin_gap_mean_abs",
    "nats",
    "|learner - engine| log-probability, over the first tokens of turns, sampled by the version being trained: far larger than "
    "that of all where engine and learner had other tokens before them",
)
LOG_ODDS_SLOPE = _mean(
    "mismatch/log_odds_slope",
    "1",
    "slope of the engine's log-odds over the learner's, over tokens sampled by the version being trained; another one than 1 "
    "where their temperatures differ",
)
LOG_ODDS_EXPLAINED = _mean(
    "mismatch/log_odds_explained", "1", "share of the squared differences of log-odds that their slope explains"
)
LOG_ODDS_SUMS = tuple(
    _mean(f"mismatch/log_odds_{what}", "1", "no reading, but a sum behind two") for what in ("x", "y", "xx", "xy", "yy")
)
"""Means of the learner's log-odds x and the engine's y, and of their products; slope and share come from them."""
MISMATCH_K3 = _mean("mismatch/k3", "nats", "k3 from engine to learner, over tokens sampled by the version being trained")
BEHAVIOUR_GAP = _mean("kl/behaviour_gap_mean_abs", "nats", "|log of proximal / behaviour probability|")
BEHAVIOUR_K3 = _mean("kl/behaviour_k3", "nats", "k3 from the behaviour policies to the policy being trained")
KL_REFERENCE = _mean(
    "kl/reference_k3",
    "nats",
    "k3 from the policy being trained to the reference, times the weight that the divergence has in the loss, over tokens that "
    "the correction has not left out",
)
TEACHER_KL = _mean(
    "teacher/reverse_kl",
    "nats",
    "log-probability by the policy being trained less that by the teacher, times the weight that the token has in the loss: the "
    "divergence from the policy to the teacher, over tokens that the correction has not left out",
)
KL_COEFFICIENT = _mean("kl/coefficient", "1", "factor of the divergence from the reference")

LEAST_LOAD = _mean(
    "experts/least_load", "1", "tokens of the expert that has fewest in its layer / an even load; the least of all layers"
)
MOST_LOAD = _mean(
    "experts/most_load", "1", "tokens of the expert that has most in its layer / an even load; the most of all layers"
)
LOAD_ENTROPY = _mean(
    "experts/load_entropy", "1", "entropy of a layer's loads / that of even loads, the mean over layers; 1 if all are even"
)
REPLAY_DIFFERS = _mean(
    "experts/replay_differs",
    "1",
    "of the experts that engines chose for the tokens before those in the loss, the share that the learner's routers would not",
)

STALENESS_MEAN = _mean("staleness/mean", "versions", "version being trained - version that sampled the token")
STALENESS_MAX = Metric("staleness/max", "versions", Reduction.MAX, "largest staleness of a token in the loss")
STALENESS_IN_FLIGHT = _mean("staleness/in_flight_mean", "versions", "part of the staleness that built up during generation")
STALENESS_IN_BUFFER = _mean("staleness/in_buffer_mean", "versions", "part of the staleness that built up in the buffer")
STALENESS_STEPS = _mean(
    "staleness/optimizer_steps_mean",
    "steps",
    "optimizer steps between the weights that sampled the token and those that trained it: staleness times the optimizer steps "
    "of a batch, plus those already taken on this batch",
)

GRAD_NORM = _mean("learner/grad_norm", "1", "gradient norm before clipping; the mean over the optimizer steps of the batch")
LEARNING_RATE = _mean("learner/lr", "1", "learning rate of the training step")
TOKENS = _sum("learner/tokens", "tokens", "sampled tokens in the loss")
TOKENS_MASKED_STALE = _sum("learner/tokens_masked_stale", "tokens", "sampled tokens left out because they are too stale")
TOKENS_MASKED_WEIGHT = _sum("learner/tokens_masked_weight", "tokens", "tokens left out because of their importance weight")
TOKENS_REJECTED = _sum("learner/tokens_rejected", "tokens", "tokens left out by a rejection criterion")
TOKENS_COMPUTED = _sum(
    "learner/tokens_computed",
    "tokens",
    "tokens that one pass over the batch computes: a prefix that rows share counts once in each micro-batch, and what follows a "
    "row's last prediction not at all",
)
STEP_SECONDS = Metric(
    "learner/step_seconds", "s", Reduction.MAX, "wall time of the batch's optimizer steps, data preparation included"
)
TFLOPS_PER_RANK = _mean(
    "learner/tflops_per_rank",
    "TFLOP/s",
    "model FLOPs (learners/flops.py) per second and rank, over all passes of the training step, critic and reference too",
)
MFU = _mean("learner/mfu", "1", "learner/tflops_per_rank / the device's dense bfloat16 peak; only where the peak is known")


TOKENS_AT = "staleness/tokens_at_"
"""Where the names of the bars of the staleness histogram begin."""


def tokens_at(staleness: int) -> Metric:
    """The metric of one bar of the staleness histogram."""
    return _sum(f"{TOKENS_AT}{staleness}", "tokens", f"tokens in the loss of staleness {staleness}")


def by_staleness(metric: Metric, youngest: int, oldest: int) -> Metric:
    """The metric ``metric`` restricted to tokens of staleness ``youngest`` to ``oldest``."""
    ages = f"{youngest}" if youngest == oldest else f"{youngest}_to_{oldest}"
    return Metric(f"{metric.name}_at_{ages}", metric.unit, metric.reduction, f"{metric.meaning}; tokens of staleness {ages}")


def gap_evidence(values: Mapping[str, float]) -> GapEvidence:
    """Return what the readings of a training step, by name, say of the gap between learner and engines."""
    return GapEvidence(
        fresh=values.get(LOGPROB_GAP.name),
        one_version=values.get(ONE_VERSION_GAP.name),
        turn_begins=values.get(TURN_BEGIN_GAP.name),
        older=values.get(by_staleness(BEHAVIOUR_GAP, 1, 1).name),
        slope=values.get(LOG_ODDS_SLOPE.name),
        explained=values.get(LOG_ODDS_EXPLAINED.name),
    )
