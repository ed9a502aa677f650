"""Losses against formulas written token by token in Python's own float64; gradients against differences of those."""

import math

import msgspec
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from loss_samples import Row, Token, decoupled, decoupled_ppo, pack_tokens, rows_of_tokens

from asyncrl.core.recipe.algorithm import KlInLossConfig, NoKlConfig
from asyncrl.core.recipe.correction import (
    MaskBoundConfig,
    NormalizedBoundConfig,
    RejectDivergenceConfig,
    RejectOffPolicySequenceConfig,
    RejectRatioConfig,
    TruncateBoundConfig,
)
from asyncrl.core.recipe.loss import (
    CispoLossConfig,
    ClipCovLossConfig,
    CrossEntropyLossConfig,
    DivergenceMaskLossConfig,
    GmpoLossConfig,
    GspoLossConfig,
    KlCovLossConfig,
    PpoClipLossConfig,
    ReinforceLossConfig,
    SapoLossConfig,
)
from asyncrl.learners.algorithm.losses import policy_loss

PLAIN = decoupled(weight="none")
LOSSES = {
    "ppo": PpoClipLossConfig(clip_low=0.2, clip_high=0.3),
    "dual": PpoClipLossConfig(clip_low=0.2, clip_high=0.3, dual_clip=2.0),
    "gspo": GspoLossConfig(clip_low=0.2, clip_high=0.3),
    "cispo": CispoLossConfig(clip_low=0.5, clip_high=1.0),
    "sapo": SapoLossConfig(tau_positive=1.0, tau_negative=2.0),
    "gmpo": GmpoLossConfig(clip=0.4),
    "dppo_tv": DivergenceMaskLossConfig(divergence="tv", low=0.1, high=0.15, max_ratio=3.0),
    "dppo_kl": DivergenceMaskLossConfig(divergence="kl", low=0.05, high=0.02, max_ratio=3.0),
    "clip_cov": ClipCovLossConfig(clip_low=0.2, clip_high=0.3),
    "kl_cov": KlCovLossConfig(coefficient=0.7),
    "reinforce": ReinforceLossConfig(),
}
CORRECTIONS = [
    PLAIN,
    decoupled(bound=TruncateBoundConfig(upper=2.0)),
    decoupled(weight="segment", bound=MaskBoundConfig(lower=0.5, upper=2.0)),
    decoupled(weight="sequence", reject=(RejectRatioConfig(level="segment", reduce="max", lower=0.1, upper=9.0),)),
    decoupled(anchor="proximal_log_linear", reject=(RejectDivergenceConfig(level="token", upper=0.4),), trust_region_decay=0.8),
    decoupled(anchor="behaviour", weight="none"),
    decoupled(bound=NormalizedBoundConfig(upper=2.0), reject=(RejectOffPolicySequenceConfig(upper=0.5),)),
]


def held(value, low, high):
    return min(max(value, low), high)


def reference_surrogate(row, at, thetas, anchors, kept, singled, config, decay):
    """The surrogate of token ``at``; lists are of the row, ``kept`` of those of its tokens that are trained."""
    advantage, narrowing = row.advantage, decay ** row.tokens[at].staleness
    lr = thetas[at] - anchors[at]
    ratio = math.exp(lr)
    ratios = [thetas[i] - anchors[i] for i in kept]
    match config:
        case PpoClipLossConfig() | ClipCovLossConfig():
            clipped = held(ratio, 1 - config.clip_low * narrowing, 1 + config.clip_high * narrowing)
            value = min(ratio * advantage, clipped * advantage)
            if isinstance(config, PpoClipLossConfig) and config.dual_clip and advantage < 0:
                value = max(value, config.dual_clip * advantage)
            return value
        case GspoLossConfig():
            s = math.exp(sum(ratios) / len(ratios))
            return min(s * advantage, held(s, 1 - config.clip_low * narrowing, 1 + config.clip_high * narrowing) * advantage)
        case CispoLossConfig():
            return held(ratio, 1 - config.clip_low, 1 + config.clip_high * narrowing) * advantage * thetas[at]
        case SapoLossConfig():
            tau = config.tau_positive if advantage > 0 else config.tau_negative
            return 4 / tau / (1 + math.exp(-tau * (ratio - 1))) * advantage
        case GmpoLossConfig():
            sign = 1 if advantage > 0 else -1
            clip = [config.clip * decay ** row.tokens[i].staleness for i in kept]
            logs = [
                sign * min(sign * value, sign * held(value, -bound, bound)) for value, bound in zip(ratios, clip, strict=True)
            ]
            return math.exp(sum(logs) / len(logs)) * advantage
        case DivergenceMaskLossConfig():
            now, before = math.exp(thetas[at]), math.exp(anchors[at])
            if config.divergence == "tv":
                distance = abs(now - before)
            else:
                distance = before * math.log(before / now) + (1 - before) * math.log((1 - before) / (1 - now))
            away = now > before if advantage > 0 else now < before
            if away and distance > (config.high if advantage > 0 else config.low) * narrowing:
                return 0.0
            return min(ratio, config.max_ratio) * advantage * thetas[at]
        case KlCovLossConfig():
            return ratio * advantage - (config.coefficient * abs(lr) if singled else 0.0)
        case ReinforceLossConfig():
            return advantage * thetas[at]


def reference_anchor(token, theta, correction):
    match correction.anchor:
        case "behaviour":
            return token.behaviour
        case "proximal_log_linear":
            if token.staleness == 0:
                return token.behaviour
            return theta + (token.behaviour - theta) / token.staleness
    return token.proximal


def reference_loss(rows, config, denominator, singled=None):
    decay = config.correction.trust_region_decay
    total, place = 0.0, 0
    for row in rows:
        thetas = [token.theta for token in row.tokens]
        anchors = [reference_anchor(token, token.theta, config.correction) for token in row.tokens]
        weights = {at: reference_weight(row, at, anchors, config.correction) for at, one in enumerate(row.tokens) if one.mask}
        kept = [at for at, weight in weights.items() if weight and not reference_rejected(row, at, config.correction)]
        for at in kept:
            weight = weights[at]
            if isinstance(config.loss, GmpoLossConfig):
                weight = math.prod(weights[i] for i in kept) ** (1 / len(kept))
            out = singled is not None and bool(singled[place + at])
            total -= row.share * weight * reference_surrogate(row, at, thetas, anchors, kept, out, config.loss, decay)
        place += len(row.tokens)
    return total / denominator


def alike(row, at, level):
    """Places of the tokens in the loss that are treated together with ``at``."""
    if level == "token":
        return [at]
    return [i for i, t in enumerate(row.tokens) if t.mask and (level == "sequence" or t.turn == row.tokens[at].turn)]


def reference_weight(row, at, anchors, correction):
    if correction.weight == "none":
        return 1.0
    places = alike(row, at, correction.weight)
    weight = math.exp(sum(anchors[i] - row.tokens[i].behaviour for i in places) / len(places))
    if isinstance(correction.bound, TruncateBoundConfig | NormalizedBoundConfig):
        return min(weight, correction.bound.upper)
    return weight if correction.bound.lower <= weight <= correction.bound.upper else 0.0


def reference_rejected(row, at, correction):
    reduce = {"mean": lambda v: sum(v) / len(v), "sum": sum, "max": max}
    for criterion in correction.reject:
        if isinstance(criterion, RejectOffPolicySequenceConfig):
            kl = [row.tokens[i].behaviour - row.tokens[i].theta for i in alike(row, at, "sequence")]
            if row.advantage < 0 and sum(kl) / len(kl) > criterion.upper:
                return True
            continue
        logs = [row.tokens[i].proximal - row.tokens[i].behaviour for i in alike(row, at, criterion.level)]
        if isinstance(criterion, RejectRatioConfig):
            largest, smallest = reduce[criterion.reduce](logs), -reduce[criterion.reduce]([-value for value in logs])
            if math.exp(largest) > criterion.upper or math.exp(smallest) < criterion.lower:
                return True
        else:
            estimate = {"k1": lambda d: -d, "k2": lambda d: d * d / 2, "k3": lambda d: math.exp(d) - 1 - d}[criterion.estimator]
            if reduce[criterion.reduce]([estimate(d) for d in logs]) > criterion.upper:
                return True
    return False


def margins(rows, config):
    """How close any comparison of the correction comes to an edge, where rounding decides."""
    correction = config.correction
    for row in rows:
        anchors = [reference_anchor(token, token.theta, correction) for token in row.tokens]
        for at, token in enumerate(row.tokens):
            if not token.mask:
                continue
            places = alike(row, at, correction.weight if correction.weight != "none" else "token")
            weight = math.exp(sum(anchors[i] - row.tokens[i].behaviour for i in places) / len(places))
            bound = correction.bound
            edges = [bound.lower, bound.upper] if isinstance(bound, MaskBoundConfig) else [bound.upper]
            yield from (abs(weight - edge) for edge in edges)
            shifted = [
                reference_rejected(
                    row, at, msgspec.structs.replace(correction, reject=tuple(nudged(c, f) for c in correction.reject))
                )
                for f in (1 - 1e-4, 1 + 1e-4)
            ]
            yield float(shifted[0] == shifted[1])


def nudged(criterion, factor):
    if isinstance(criterion, RejectRatioConfig):
        return msgspec.structs.replace(criterion, lower=criterion.lower / factor, upper=criterion.upper * factor)
    return msgspec.structs.replace(criterion, upper=criterion.upper * factor)


def loss_of(rows, config, denominator, singled=None):
    theta, proximal, tokens = pack_tokens(rows, singled)
    theta.requires_grad_()
    outcome = policy_loss(theta, proximal, torch.zeros_like(theta), tokens, config, denominator)
    return theta, outcome


@settings(max_examples=400)
@given(rows_of_tokens(), st.sampled_from(list(LOSSES)), st.sampled_from(CORRECTIONS), st.data())
def test_every_loss_with_every_correction_is_the_sum_of_its_terms(rows, name, correction, data):
    config = decoupled_ppo(loss=LOSSES[name], correction=correction)
    assume(min(margins(rows, config), default=1.0) > 1e-4)
    count = sum(len(row.tokens) for row in rows)
    singled = torch.tensor(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    assume(not (isinstance(config.loss, DivergenceMaskLossConfig)) or far_from_the_divergence_edge(rows, config))
    _, outcome = loss_of(rows, config, 7, singled)
    assert outcome.loss.item() == pytest.approx(reference_loss(rows, config, 7, singled), rel=2e-4, abs=2e-4)


def far_from_the_divergence_edge(rows, config):
    near = []
    for factor in (1 - 1e-3, 1 + 1e-3):
        loss = msgspec.structs.replace(config.loss, low=config.loss.low * factor, high=config.loss.high * factor)
        near.append(reference_loss(rows, msgspec.structs.replace(config, loss=loss), 1))
    return near[0] == near[1]


SMOOTH = [name for name in LOSSES if name not in ("cispo", "dppo_tv", "dppo_kl", "gspo", "clip_cov", "reinforce")]


@settings(max_examples=150)
@given(rows_of_tokens(), st.sampled_from(SMOOTH))
def test_gradients_are_the_differences_of_the_formula(rows, name):
    config = decoupled_ppo(loss=LOSSES[name], correction=PLAIN)
    theta, outcome = loss_of(rows, config, 3)
    outcome.loss.backward()
    expected = differences(rows, config)
    for one, (below, above) in zip(theta.grad.tolist(), expected, strict=True):
        # Both sides of a corner count, where there is one.
        assert min(below, above) - 1e-3 <= one <= max(below, above) + 1e-3


def differences(rows, config, step=1e-5):
    """Slopes of the formula below and above each token's log-probability."""
    base = reference_loss(rows, config, 3)
    slopes = []
    for number, row in enumerate(rows):
        for at in range(len(row.tokens)):
            moved = [reference_loss(nudge(rows, number, at, shift), config, 3) for shift in (-step, step)]
            slopes.append(((base - moved[0]) / step, (moved[1] - base) / step))
    return slopes


def nudge(rows, number, at, shift):
    tokens = list(rows[number].tokens)
    tokens[at] = msgspec.structs.replace(tokens[at], theta=tokens[at].theta + shift)
    return [*rows[:number], msgspec.structs.replace(rows[number], tokens=tuple(tokens)), *rows[number + 1 :]]


@settings(max_examples=30)
@given(rows_of_tokens())
def test_a_row_of_gspo_has_the_gradient_of_the_geometric_mean(rows):
    """Summed over the row; each token of the straight-through form has as much of it as any other."""
    config = decoupled_ppo(loss=GspoLossConfig(clip_low=0.5, clip_high=1.0), correction=PLAIN)
    theta, outcome = loss_of(rows, config, 3)
    outcome.loss.backward()
    assert torch.isfinite(theta.grad).all()
    for part, row, slopes in zip(
        theta.grad.split([len(row.tokens) for row in rows]), rows, rowwise(differences(rows, config), rows), strict=True
    ):
        low, high = sum(min(pair) for pair in slopes), sum(max(pair) for pair in slopes)
        assert low - 1e-3 <= part.sum().item() <= high + 1e-3
        inside = [value for value, token in zip(part.tolist(), row.tokens, strict=True) if token.mask]
        assert max(inside, default=0) - min(inside, default=0) < 1e-5


def rowwise(values, rows):
    values = iter(values)
    return [[next(values) for _ in row.tokens] for row in rows]


def one_token(theta, advantage, loss, behaviour=-1.0, correction=PLAIN, staleness=0, singled=None, proximal=-1.0):
    """Gradient and outcome of a single token, with denominator 1."""
    rows = [Row((Token(theta, proximal, behaviour, True, staleness, 0),), advantage)]
    logp, outcome = loss_of(rows, decoupled_ppo(loss=loss, correction=correction), 1, singled)
    outcome.loss.backward()
    return logp.grad.item(), outcome


@settings(max_examples=100)
@given(rows_of_tokens(), st.sampled_from(list(LOSSES)))
def test_where_the_policy_is_its_anchor_every_loss_is_plain_reinforce(rows, name):
    """What :mod:`asyncrl.core.recipe.rules.inert` tells at launch."""
    rows = [
        msgspec.structs.replace(row, tokens=tuple(msgspec.structs.replace(token, proximal=token.theta) for token in row.tokens))
        for row in rows
    ]
    gradients = []
    for loss in (LOSSES[name], ReinforceLossConfig()):
        theta, outcome = loss_of(rows, decoupled_ppo(loss=loss, correction=decoupled(weight="sequence")), 3)
        outcome.loss.backward()
        gradients.append(theta.grad.tolist())
        assert not outcome.clipped.any()
    assert gradients[0] == pytest.approx(gradients[1], rel=1e-4, abs=1e-6)


def test_cross_entropy_imitates_whatever_the_advantage():
    rows = [
        Row((Token(-1.0, -2.0, -3.0, True, 0, 0), Token(-2.0, -2.0, -2.0, False, 0, 0)), advantage) for advantage in (-3.0, 2.0)
    ]
    imitation = decoupled_ppo(loss=CrossEntropyLossConfig(), correction=decoupled(weight="none"))
    theta, outcome = loss_of(rows, imitation, 4)
    outcome.loss.backward()
    assert outcome.loss.item() == pytest.approx(2 * 1.0 / 4)
    assert theta.grad.tolist() == [-0.25, 0.0, -0.25, 0.0]


HIGH, LOW, INSIDE = -1.0 + math.log(1.5), -1.0 + math.log(0.5), -1.0 + math.log(1.25)


def test_the_clip_cuts_the_gradient_where_it_says_so_and_nowhere_else():
    ppo = LOSSES["ppo"]
    gradient, outcome = one_token(HIGH, 1.0, ppo)
    assert gradient == 0.0
    assert outcome.clipped.all()
    assert one_token(HIGH, -1.0, ppo)[0] == pytest.approx(1.5)
    assert one_token(LOW, -1.0, ppo)[0] == 0.0
    assert one_token(LOW, 1.0, ppo)[0] == pytest.approx(-0.5)
    # Between 1 + clip_low and 1 + clip_high: the range is asymmetric.
    assert one_token(INSIDE, 1.0, ppo)[0] == pytest.approx(-1.25)


def test_dual_clip_bounds_what_a_bad_token_costs():
    gradient, outcome = one_token(-1.0 + math.log(3.0), -1.0, LOSSES["dual"])
    assert gradient == 0.0
    assert outcome.loss.item() == pytest.approx(2.0)
    assert one_token(-1.0 + math.log(1.9), -1.0, LOSSES["dual"])[0] == pytest.approx(1.9)


def test_cispo_bounds_the_weight_and_never_cuts_the_gradient():
    assert one_token(HIGH, 1.0, CispoLossConfig(clip_high=0.2))[0] == pytest.approx(-1.2)
    assert one_token(LOW, 1.0, CispoLossConfig(clip_high=0.2))[0] == pytest.approx(-0.5)


def test_no_token_of_cispo_weighs_more_for_being_stale():
    """Gradients of a token of each staleness, the most that it can weigh narrowing with it."""
    decaying = decoupled(weight="none", trust_region_decay=0.5)
    loss = CispoLossConfig(clip_low=0.5, clip_high=1.0)
    for log_ratio, weights in ((-3.0, [0.5, 0.5, 0.5]), (3.0, [2.0, 1.5, 1.25])):
        found = [-one_token(-1.0 + log_ratio, 1.0, loss, correction=decaying, staleness=age)[0] for age in range(3)]
        assert found == pytest.approx(weights)


THROUGH_THE_RATIO = [name for name in LOSSES if name not in ("cispo", "dppo_tv", "dppo_kl", "reinforce")]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [-25.0, 25.0])
def test_a_token_beyond_the_guard_is_called_clipped_where_that_costs_it_its_gradient(name, advantage, log_ratio):
    gradient, outcome = one_token(-30.0 + log_ratio, advantage, LOSSES[name], correction=PLAIN, proximal=-30.0)
    assert outcome.clipped.all() == (name in THROUGH_THE_RATIO)
    if name in THROUGH_THE_RATIO:
        assert gradient == 0.0


def test_a_token_without_advantage_has_no_gradient_that_could_be_clipped():
    assert not one_token(-5.0, 0.0, LOSSES["ppo"], proximal=-30.0)[1].clipped.any()


@pytest.mark.parametrize("log_ratio", [-25.0, -2.0, 2.0, 25.0])
def test_the_penalty_of_kl_cov_leads_back_from_anywhere(log_ratio):
    singled = torch.tensor([True])
    gradient, outcome = one_token(-30.0 + log_ratio, 0.0, KlCovLossConfig(coefficient=0.7), proximal=-30.0, singled=singled)
    assert gradient == pytest.approx(math.copysign(0.7, log_ratio))
    assert outcome.loss.item() == pytest.approx(0.7 * abs(log_ratio))
    assert not outcome.clipped.any()


@pytest.mark.parametrize("straight_through", [True, False])
@pytest.mark.parametrize("distance", [-25.0, 25.0])
def test_a_divergence_in_the_loss_leads_back_from_anywhere(distance, straight_through):
    theta, proximal, tokens = pack_tokens([Row((token(-40.0, -40.0, -40.0),), 0.0)])
    tokens = msgspec.structs.replace(tokens, logp_reference=theta - distance)
    config = decoupled_ppo(kl=KlInLossConfig(straight_through=straight_through))
    theta.requires_grad_()
    policy_loss(theta, proximal, torch.zeros(1), tokens, config, 1, 0.1).loss.backward()
    slope = distance if straight_through else 1.0 - math.exp(-max(distance, -20.0))
    assert theta.grad.item() == pytest.approx(0.1 * slope)


def test_a_divergence_mask_cuts_only_what_moves_further_away():
    tv = DivergenceMaskLossConfig(low=0.05, high=0.05)
    assert one_token(HIGH, 1.0, tv)[0] == 0.0
    assert one_token(HIGH, -1.0, tv)[0] == pytest.approx(1.5)
    assert one_token(LOW, -1.0, tv)[0] == 0.0
    assert one_token(LOW, 1.0, tv)[0] == pytest.approx(-0.5)


@pytest.mark.parametrize(("divergence", "between"), [("tv", 0.1), ("kl", 0.02)])
def test_a_divergence_mask_has_a_bound_of_its_own_for_each_sign(divergence, between):
    for low, high in ((between, 9.0), (9.0, between)):
        loss = DivergenceMaskLossConfig(divergence=divergence, low=low, high=high)
        assert (one_token(HIGH, 1.0, loss)[0] == 0.0) == (high == between)
        assert (one_token(LOW, -1.0, loss)[0] == 0.0) == (low == between)


@pytest.mark.parametrize(("divergence", "usual"), [("tv", 0.2), ("kl", 0.05)])
def test_a_divergence_mask_has_the_bound_that_is_usual_for_its_divergence(divergence, usual):
    """Found by where a token of probability 1/2 before the step loses its gradient, on either side."""
    distance = {
        "tv": lambda p: abs(p - 0.5),
        "kl": lambda p: 0.5 * math.log(0.5 / p) + 0.5 * math.log(0.5 / (1 - p)),
    }[divergence]
    loss = DivergenceMaskLossConfig(divergence=divergence)
    for p in (0.2, 0.25, 0.29, 0.31, 0.33, 0.36, 0.6, 0.64, 0.66, 0.69, 0.71, 0.8):
        gradient, _ = one_token(math.log(p), 1.0 if p > 0.5 else -1.0, loss, proximal=math.log(0.5))
        assert (gradient == 0.0) == (distance(p) > usual)


def test_a_rejected_token_adds_nothing_and_is_not_called_clipped():
    reject = decoupled(weight="none", reject=(RejectRatioConfig(level="token", lower=0.9, upper=1.1),))
    gradient, outcome = one_token(HIGH, 1.0, LOSSES["ppo"], behaviour=-3.0, correction=reject)
    assert (gradient, outcome.loss.item()) == (0.0, 0.0)
    assert outcome.correction.rejected.all()
    assert not outcome.clipped.any()


LEFT_OUT = {
    "rejected": decoupled(reject=(RejectRatioConfig(level="token", lower=0.5, upper=2.0),)),
    "masked": decoupled(bound=MaskBoundConfig(lower=0.5, upper=2.0)),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("correction", LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_is_left_out_adds_nothing_to_the_rest_of_its_row(name, correction):
    """The rest of the row is trained as if it were not there, but for the denominator, which is given."""
    kept = (Token(-1.0, -1.2, -1.1, True, 1, 0), Token(-2.0, -1.9, -2.2, True, 0, 0))
    outlier = Token(-0.5, -0.6, -5.0, True, 0, 0)
    config = decoupled_ppo(loss=LOSSES[name], correction=correction, entropy_bonus=0.3)
    found = []
    for row in (kept, (kept[0], outlier, kept[1])):
        theta, proximal, tokens = pack_tokens([Row(row, 1.0)])
        theta.requires_grad_()
        entropy = torch.full_like(theta, 0.7, requires_grad=True)
        outcome = policy_loss(theta, proximal, entropy, tokens, config, 3)
        outcome.loss.backward()
        found.append((outcome.loss.item(), theta.grad.tolist(), entropy.grad.tolist()))
    (loss, gradient, of_entropy), (loss_with, gradient_with, of_entropy_with) = found
    assert loss_with == pytest.approx(loss)
    assert gradient_with == pytest.approx([gradient[0], 0.0, gradient[1]])
    assert of_entropy_with == pytest.approx([of_entropy[0], 0.0, of_entropy[1]])


@settings(max_examples=50)
@given(rows_of_tokens())
def test_gmpo_weighs_each_token_within_its_mean(rows):
    """Weight times ratio is the ratio to the policy that sampled, token by token, and so is their geometric mean."""
    wide = GmpoLossConfig(clip=100.0)
    weighed = decoupled_ppo(loss=wide, correction=decoupled(weight="token", bound=TruncateBoundConfig(upper=1e9)))
    plain = decoupled_ppo(loss=wide, correction=decoupled(anchor="behaviour", weight="none"))
    theta, outcome = loss_of(rows, weighed, 3)
    outcome.loss.backward()
    expected_theta, expected = loss_of(rows, plain, 3)
    expected.loss.backward()
    assert outcome.loss.item() == pytest.approx(expected.loss.item(), rel=1e-4, abs=1e-5)
    assert theta.grad.tolist() == pytest.approx(expected_theta.grad.tolist(), rel=1e-4, abs=1e-5)


def test_singled_out_tokens():
    singled = torch.tensor([True])
    assert one_token(-1.0, 1.0, ClipCovLossConfig(), singled=singled)[0] == 0.0
    assert one_token(-1.0, 1.0, ClipCovLossConfig())[0] == pytest.approx(-1.0)
    assert one_token(INSIDE, 1.0, KlCovLossConfig(coefficient=2.0), singled=singled)[0] == pytest.approx(-1.25 + 2.0)


def test_the_trust_region_narrows_with_staleness():
    narrow = decoupled(weight="none", trust_region_decay=0.5)
    assert one_token(INSIDE, 1.0, LOSSES["ppo"], correction=narrow)[0] == pytest.approx(-1.25)
    assert one_token(INSIDE, 1.0, LOSSES["ppo"], correction=narrow, staleness=1)[0] == 0.0


@pytest.mark.parametrize("staleness", [0, 1])
def test_with_the_log_linear_anchor_a_fresh_token_has_a_ratio_and_a_clip(staleness):
    """So it is in a later optimizer step of its batch, when the policy has moved away from the one that sampled it."""
    log_linear = decoupled(anchor="proximal_log_linear", bound=TruncateBoundConfig(upper=9.0))
    gradient, outcome = one_token(HIGH, 1.0, LOSSES["ppo"], correction=log_linear, staleness=staleness)
    assert gradient == 0.0
    assert outcome.clipped.all()
    assert one_token(HIGH, -1.0, LOSSES["ppo"], correction=log_linear, staleness=staleness)[0] == pytest.approx(1.5)


def test_importance_weight_scales_the_gradient_and_is_truncated():
    truncated = decoupled(bound=TruncateBoundConfig(upper=2.0))
    on_policy = one_token(-1.0, 1.0, LOSSES["ppo"])[0]
    assert one_token(-1.0, 1.0, LOSSES["ppo"], -1.0 - math.log(1.5), truncated)[0] == pytest.approx(1.5 * on_policy)
    assert one_token(-1.0, 1.0, LOSSES["ppo"], -6.0, truncated)[0] == pytest.approx(2.0 * on_policy)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_masked_tokens_change_nothing_whatever_stands_there(name, correction):
    config = decoupled_ppo(loss=LOSSES[name], correction=correction)
    good = Row((Token(-1.0, -1.2, -0.9, True, 1, 0), Token(-2.0, -1.9, -2.2, True, 0, 0)), 1.0)
    broken = Token(math.nan, -1.0, -math.inf, False, 9, 0)
    _, clean = loss_of([good], config, 2)
    theta, outcome = loss_of([msgspec.structs.replace(good, tokens=(*good.tokens, broken)), Row((broken,), 3.0)], config, 2)
    outcome.loss.backward()
    assert outcome.loss.item() == clean.loss.item()
    assert theta.grad[2:].tolist() == [0.0, 0.0]
    assert torch.isfinite(theta.grad).all()


@pytest.mark.parametrize("name", LOSSES)
def test_no_tokens_at_all_are_a_loss_of_zero(name):
    theta, outcome = loss_of([], decoupled_ppo(loss=LOSSES[name]), 5)
    outcome.loss.backward()
    assert outcome.loss.item() == 0.0
    assert len(theta.grad) == 0


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_hopeless_token_keeps_loss_and_gradient_finite(name, advantage):
    row = Row((Token(-0.1, -400.0, -1.0, True, 0, 0), Token(-300.0, -0.1, -500.0, True, 2, 1)), advantage)
    theta, outcome = loss_of([row], decoupled_ppo(loss=LOSSES[name]), 1)
    outcome.loss.backward()
    assert torch.isfinite(outcome.loss)
    assert torch.isfinite(theta.grad).all()


def test_the_entropy_bonus_is_per_token_and_needs_a_gradient():
    rows = [Row((Token(-1.0, -1.0, -1.0, True, 0, 0), Token(-1.0, -1.0, -1.0, False, 0, 0)), 1.0, 0.5)]
    theta, proximal, tokens = pack_tokens(rows)
    theta.requires_grad_()
    entropy = torch.tensor([0.7, 0.9], requires_grad=True)
    config = decoupled_ppo(entropy_bonus=0.1)
    policy_loss(theta, proximal, entropy, tokens, config, 4).loss.backward()
    assert entropy.grad.tolist() == pytest.approx([-0.5 * 0.1 / 4, 0.0])
    with pytest.raises(ValueError, match="entropy has no gradient"):
        policy_loss(theta, proximal, entropy.detach(), tokens, config, 4)


def test_a_divergence_in_the_loss_is_weighted_as_the_surrogate_is_and_leaves_out_what_it_leaves_out():
    """Token by token: 0.5 * weight * ratio * k3, of the tokens that are kept; its gradient that of k2 if it is to be the
    divergence's."""
    row = Row((token(-1.0, -1.5, -2.0), token(-0.5, -0.5, -4.0), token(-2.0, -2.0, -2.0, mask=False)), 1.0, 3.0)
    theta, proximal, tokens = pack_tokens([row])
    reference = torch.tensor([-1.2, -0.1, math.nan])
    tokens = msgspec.structs.replace(tokens, logp_reference=reference)
    correction = decoupled(bound=MaskBoundConfig(lower=0.5, upper=5.0))
    entropy = torch.zeros(3)

    def gradient_and_loss(kl, coefficient):
        logp = theta.clone().requires_grad_()
        outcome = policy_loss(logp, proximal, entropy, tokens, decoupled_ppo(correction=correction, kl=kl), 7, coefficient)
        outcome.loss.backward()
        return outcome.loss.item(), logp.grad

    none, none_gradient = gradient_and_loss(NoKlConfig(), 0.0)
    weight, difference = math.exp(0.5) * math.exp(0.5), 0.2  # the second token weighs more than 5 and is masked
    for straight_through, slope in ((True, difference), (False, 1 - math.exp(-difference))):
        loss, gradient = gradient_and_loss(KlInLossConfig(straight_through=straight_through), 0.5)
        assert loss - none == pytest.approx(3.0 * weight * 0.5 * (math.exp(-difference) - 1 + difference) / 7, rel=1e-4)
        assert (gradient - none_gradient).tolist() == pytest.approx([3.0 * weight * 0.5 * slope / 7, 0.0, 0.0], rel=1e-4)


def test_a_divergence_without_a_reference_is_refused():
    theta, proximal, tokens = pack_tokens([Row((token(-1.0, -1.0, -1.0),), 1.0)])
    with pytest.raises(ValueError, match="no log-probabilities under the reference"):
        policy_loss(theta, proximal, torch.zeros(1), tokens, decoupled_ppo(kl=KlInLossConfig()), 1, 0.1)


def token(theta, proximal, behaviour, mask=True):
    return Token(theta=theta, proximal=proximal, behaviour=behaviour, mask=mask, staleness=0, turn=0)
