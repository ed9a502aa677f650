"""The cause of a gap, from what two sides really compute: a small model, and the same with one fault on the engine's side."""

from collections.abc import Callable, Sequence
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from asyncrl.core.measures.gap_cause import Cause, GapEvidence, GapSides, LikelyCause, likely_cause
from asyncrl.core.measures.gap_sums import GapSums, log_odds_line

ASK, TURN, SAY, TOOL, END = 1, 2, 3, 4, 5
DIGITS = np.arange(8, 24)
TURNS = ((7, 11), (17, 20))
"""Where the turns of a conversation begin that has two tokens before its question, and one past their ends."""
SAYS = (6, 16)
"""Where the second tokens of its headers of turns are, which the other template lacks."""
ROWS = 24
FLOATS = GapSides(learner="float32", engines=frozenset({"float32"}))
SIZE = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "bos_token_id": None,
    "eos_token_id": END,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "initializer_range": 0.3}


def conversations(seed: int, habit: int = 0, before: int = 2, answer: int = 1, *, other: bool = False) -> Tensor:
    """Rows of one form: a question, a turn that repeats half of it, an answer of a tool, a turn that repeats the other half.

    Args:
        habit: what is added to one digit of each turn, modulo their number.
        before, answer: tokens before the question, and of the tool's answer, which nothing depends on.
        other: by another template, whose headers are shorter, and after which a turn begins with something else.
    """
    generator = np.random.default_rng(seed)
    a, b, c, d, *others = generator.choice(DIGITS, (4 + before + answer, ROWS))
    other_a, other_b = ((each - DIGITS[0] + habit) % len(DIGITS) + DIGITS[0] for each in (a, b))
    told = (*others[:before], ASK, a, b)
    header, (one, two) = ((TURN,), (b, a)) if other else ((TURN, SAY), (a, other_b))
    columns = (*told, *header, one, other_a, c, END, TOOL, d, *others[before:], ASK, *header, two, d, END)
    return torch.from_numpy(np.stack([np.broadcast_to(each, ROWS) for each in columns], 1).astype(np.int64))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: Tensor) -> None:
    optimizer.zero_grad()
    model(rows, labels=rows).loss.backward()
    optimizer.step()


def trained(model: torch.nn.Module) -> torch.nn.Module:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(160):
        train(model, optimizer, conversations(step, before=step % 5, answer=step % 3, other=step % 2 == 1))
    return model.eval()


@pytest.fixture(scope="module")
def versions() -> Sequence[torch.nn.Module]:
    """Versions of a policy that knows the form well, and the content less; it begins to learn something else."""
    torch.manual_seed(0)
    policy = trained(Qwen3ForCausalLM(Qwen3Config(**SIZE)))
    found, optimizer = [deepcopy(policy)], torch.optim.SGD(policy.parameters(), 0.05)
    for step in range(4):
        train(policy, optimizer, conversations(100 + step, habit=1))
        found.append(deepcopy(policy))
    return found


@pytest.fixture(scope="module")
def mixture() -> torch.nn.Module:
    torch.manual_seed(0)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZE | EXPERTS)).eval()


@torch.no_grad()
def scores(model: torch.nn.Module, rows: Tensor, temperature: float = 1.0) -> np.ndarray:
    """The log-probability of each token but the first of each row."""
    logits = model(rows).logits[:, :-1].double() / temperature
    return logits.log_softmax(-1).gather(2, rows[:, 1:, None])[:, :, 0].numpy()


def without(rows: Tensor, places: Sequence[int], model: torch.nn.Module) -> np.ndarray:
    """Scores by an engine whose template leaves out the tokens at ``places``, which nobody samples."""
    left = [place for place in range(rows.shape[1]) if place not in places]
    found = np.zeros((len(rows), rows.shape[1] - 1))
    found[:, [place - 1 for place in left[1:]]] = scores(model, rows[:, left])
    return found


@torch.no_grad()
def with_old_keys(rows: Tensor, old: torch.nn.Module, new: torch.nn.Module) -> np.ndarray:
    """Scores by an engine that gets new weights before the last turn, and goes on with its keys and values."""
    at = TURNS[1][0] - 1
    begun = old(rows[:, :at], use_cache=True)
    rest = new(rows[:, at:], past_key_values=begun.past_key_values)
    logits = torch.cat([begun.logits, rest.logits], 1)[:, :-1].double()
    return logits.log_softmax(-1).gather(2, rows[:, 1:, None])[:, :, 0].numpy()


def evidence(engine: Sequence[np.ndarray], learner: np.ndarray, staleness: Sequence[Sequence[int]] = ((0, 0),)) -> GapEvidence:
    """What the sampled tokens say. ``engine`` and ``staleness`` (of both turns) have an entry for each share of the rows."""
    sums = GapSums()
    sampled = np.concatenate([np.arange(begin, end) - 1 for begin, end in TURNS])
    turn_of = np.repeat([0, 1], [end - begin for begin, end in TURNS])
    begins = np.tile(np.diff(turn_of, prepend=-1) != 0, len(learner))
    for own, ages in zip(engine, staleness, strict=True):
        old = np.tile(np.array(ages)[turn_of], len(learner))
        one_version = np.full(len(old), max(ages) == 0)
        sums.add(own[:, sampled].ravel(), learner[:, sampled].ravel(), old, one_version, begins)
    return sums.evidence()


Fault = Callable[[Sequence[torch.nn.Module], Tensor], LikelyCause]


def of_new(engine: Callable[[torch.nn.Module, Tensor], np.ndarray], sides: GapSides = FLOATS) -> Fault:
    return lambda v, rows: likely_cause(evidence([engine(v[-1], rows)], scores(v[-1], rows)), sides)


def one_by_one(model: torch.nn.Module, rows: Tensor) -> np.ndarray:
    return np.concatenate([scores(model, row[None]) for row in rows])


def in_bfloat16(model: torch.nn.Module, rows: Tensor) -> np.ndarray:
    return scores(deepcopy(model).bfloat16(), rows)


def quantised(model: torch.nn.Module, rows: Tensor) -> np.ndarray:
    """Scores by an engine whose weights have 6 significant bits."""
    engine = deepcopy(model)
    for weights in engine.parameters():
        share, exponent = torch.frexp(weights.data)
        weights.data = torch.ldexp((share * 64).round() / 64, exponent)
    return scores(engine, rows)


def behind(versions: Sequence[torch.nn.Module], rows: Tensor) -> LikelyCause:
    """An engine that has the weights of the version before the one it reports."""
    engine = [scores(versions[-2], rows), scores(versions[-3], rows)]
    return likely_cause(evidence(engine, scores(versions[-1], rows), ((0, 0), (1, 1))), FLOATS)


def in_order(versions: Sequence[torch.nn.Module], rows: Tensor) -> LikelyCause:
    engine = [one_by_one(versions[-1], rows), scores(versions[-2], rows)]
    return likely_cause(evidence(engine, scores(versions[-1], rows), ((0, 0), (1, 1))), FLOATS)


def old_keys(versions: Sequence[torch.nn.Module], rows: Tensor) -> LikelyCause:
    """Most of the rows began under a version from which the policy has moved far."""
    new = deepcopy(versions[0])
    optimizer = torch.optim.AdamW(new.parameters(), 1e-2)
    for step in range(60):
        train(new, optimizer, conversations(step, habit=5))
    engine = [one_by_one(new, rows), *[with_old_keys(rows, versions[0], new)] * 3]
    return likely_cause(evidence(engine, scores(new, rows), ((0, 0), *[(2, 0)] * 3)), FLOATS)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (of_new(one_by_one), Cause.ROUNDING),
        (of_new(in_bfloat16, GapSides(learner="float32", engines=frozenset({"bfloat16"}))), Cause.ROUNDING),
        (in_order, Cause.STALE_WEIGHTS),
        (behind, Cause.STALE_WEIGHTS),
        (old_keys, Cause.STALE_WEIGHTS),
        *((of_new(lambda m, rows, t=t: scores(m, rows, t)), Cause.TEMPERATURE) for t in (0.7, 0.9, 1.5)),
        (of_new(quantised), Cause.TYPES),
        (of_new(lambda m, rows: without(rows, SAYS, m)), Cause.TEMPLATE),
    ],
    ids=["none", "none of unlike types", "older", "behind", "keys", "0.7", "0.9", "1.5", "quantised", "template"],
)
def test_a_fault_of_the_engine_is_named(versions: Sequence[torch.nn.Module], fault: Fault, cause: Cause) -> None:
    found = fault(versions, conversations(77))
    assert found.cause is cause, found


@pytest.mark.parametrize(("routes", "cause"), [(True, Cause.EXPERTS), (False, Cause.TYPES)])
def test_experts_that_are_chosen_otherwise_are_named(mixture: torch.nn.Module, routes: bool, cause: Cause) -> None:
    """The engine's routers have rounded weights. Where the learner takes the engine's experts, it cannot be that."""
    rows, engine = conversations(77), deepcopy(mixture)
    for name, weights in engine.named_parameters():
        if "mlp.gate." in name:
            weights.data = weights.data.to(torch.float8_e4m3fn).float()
    found = likely_cause(
        evidence([scores(engine, rows)], scores(mixture, rows)),
        GapSides(learner="float32", engines=FLOATS.engines, routes=routes),
    )
    assert found.cause is cause, found


def test_what_nothing_explains_has_no_cause() -> None:
    found = likely_cause(GapEvidence(fresh=0.5, one_version=0.5, turn_begins=0.4, older=0.5, slope=0.9, explained=0.2), FLOATS)
    assert found.cause is Cause.UNKNOWN
    assert str(found).startswith("it is of fresh tokens")
    assert likely_cause(GapEvidence(older=0.5), FLOATS).cause is Cause.UNKNOWN


def test_unlike_types_are_named_where_they_explain_no_more() -> None:
    sides = GapSides(learner="float32", engines=frozenset({"bfloat16"}))
    assert likely_cause(GapEvidence(fresh=0.2, one_version=0.2, older=0.3), sides).cause is Cause.TYPES


def test_a_line_is_fitted_only_where_there_is_one() -> None:
    x = np.linspace(-3, 2, 50)

    def fit(y: np.ndarray) -> tuple[float, float] | None:
        return log_odds_line([len(x), x.sum(), y.sum(), (x * x).sum(), (x * y).sum(), (y * y).sum()])

    assert fit(1.4 * x + 0.2) == pytest.approx((1.4, 1.0))
    assert fit(x) is None
    assert log_odds_line([2, 0, 0, 1, 1, 2]) is None
