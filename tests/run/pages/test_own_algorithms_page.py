"""What docs/how-to/own-algorithms.md shows is accepted as pasted, and computes what it says."""

import math
import re
import sys
from pathlib import Path

import pytest
import torch

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.custom.calls import call_advantage, call_aggregation, call_loss, call_weight, loaded
from asyncrl.learners.custom.made_rows import made_aggregation, made_returns, made_rows, tokens_of, weights_of
from asyncrl.learners.learning_rate import learning_rate
from asyncrl.run.dry_run.plan import make_plan
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.recipe.compose import compose

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "own-algorithms.md").read_text()


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """The page's recipe, beside its functions."""
    (written,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(written)
    (tmp_path / "mine.py").write_text("\n\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return compose(str(tmp_path / "mine.yaml"))


def test_the_page_is_accepted_without_a_remark(recipe: Recipe):
    assert len(recipe.customs) == 5
    roomy = Machine(memory=64 << 30, free=60 << 30, cores=8)
    assert not [remark for remark in make_plan(recipe, roomy).remarks if "mine:" in remark]


def test_each_function_computes_what_it_says(recipe: Recipe):
    algorithm, returns = recipe.algorithm, made_returns()
    found = call_advantage(loaded(algorithm.advantage), returns)
    first = returns.values[returns.group == 0]
    assert torch.allclose(found[returns.group == 0], (0.5 * (first - first.mean())).float())

    tokens = tokens_of(made_rows(), with_reference=False).inputs
    outcome = call_loss(loaded(algorithm.loss), tokens)
    for at in range(len(tokens.logp)):
        ratio, advantage = math.exp(tokens.log_ratio[at].item()), tokens.advantages[at].item()
        width = 0.8 ** tokens.staleness[at].item()
        held = min(max(ratio, 1 - 0.2 * width), 1 + 0.3 * width)
        assert outcome.losses[at].item() == pytest.approx(-min(ratio * advantage, held * advantage), rel=1e-5)
    assert outcome.clipped.any()

    rows = made_aggregation()
    shares, denominator = call_aggregation(loaded(algorithm.aggregation), rows)
    used = zip(rows.weights.tolist(), rows.loss_tokens.tolist(), strict=True)
    assert denominator == pytest.approx(sum(weight * math.sqrt(count) for weight, count in used))
    assert shares.tolist()[3] == pytest.approx(1 / math.sqrt(7))

    old = weights_of(made_rows(), is_anchored=True)
    weights = call_weight(loaded(algorithm.correction.weight), old)
    assert torch.allclose(weights, old.log_ratio.exp() * 0.5 ** (old.staleness / 2))

    rates = [learning_rate(step, 60, recipe.learner) for step in range(60)]
    assert rates[:3] == pytest.approx([1e-4, 2e-4, 2e-4])
    assert rates[2] == rates[22] == rates[42] == pytest.approx(2e-4)
    assert rates[12] == pytest.approx(1e-4 * (1 + recipe.learner.min_lr_ratio))


def test_a_plan_refuses_a_function_that_breaks_its_contract(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module = tmp_path / "mine.py"
    module.write_text(module.read_text().replace("-torch.minimum(free, held), held", "-held.mean(), held"))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with pytest.raises(RecipeError) as caught:
        make_plan(recipe)
    assert caught.value.place == "algorithm.loss"
    assert f"mine:clip_by_age ({tmp_path}/mine.py:" in caught.value.problem
    assert "returned a tensor of shape (); return one of shape (24,)" in str(caught.value)
