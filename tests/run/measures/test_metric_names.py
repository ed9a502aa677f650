"""Names that users choose become safe parts of metric names, and few."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, _validate_metric_name, _validate_param_name

from asyncrl.generators.finished_episodes import OTHER, ReportedMetric
from asyncrl.run.measures.metric_names import LONGEST, LONGEST_PARAMETER, FrequentNames, metric_name, parameter_name, safe_name


@given(st.text())
def test_every_name_becomes_one_that_mlflow_takes(name):
    safe = safe_name(name)
    _validate_metric_name(f"tool/{safe}/seconds_p50")
    _validate_metric_name(f"environment/{safe}")
    assert 0 < len(safe) <= LONGEST
    assert safe_name(safe) == safe


def test_names_that_would_become_alike_are_told_apart():
    names = ["a b", "a_b", "a/b", "a\nb", "", "..", "x" * 61, "x" * 62, "Straße"]
    assert len({safe_name(name) for name in names}) == len(names)
    assert safe_name("a_b") == "a_b"
    assert safe_name("gsm8k/train.jsonl:hard").startswith("gsm8k_train.jsonl_hard-")


def reports(**counts: int) -> dict[str, ReportedMetric]:
    return {name: ReportedMetric(count, 2.0 * count) for name, count in counts.items()}


def episodes(reported: ReportedMetric) -> int:
    return reported.episodes


def test_the_most_frequent_names_have_curves_and_all_others_one():
    names = FrequentNames(2)
    assert names.fold(reports(a=3, b=1, c=0), episodes) == reports(a=3, b=1)
    assert not names.folded
    assert names.fold(reports(a=3, b=1, c=1), episodes) == reports(a=3, b=1) | {OTHER: ReportedMetric(1, 2.0)}
    assert names.folded
    folded = names.fold(reports(b=1, c=8, d=1), episodes)
    assert folded == reports(c=8) | {OTHER: ReportedMetric(2, 4.0)}, "over the whole run, c is now more frequent than b"


def test_ten_thousand_names_are_few_curves_and_nothing_is_lost():
    names = FrequentNames(50)
    common = reports(accuracy=100, format=100)
    for step in range(10):
        folded = names.fold(common | reports(**{f"task_{step}_{i}": 1 for i in range(1000)}), episodes)
        assert len(folded) <= 51
        assert {"accuracy", "format", OTHER} <= folded.keys()
        assert sum(each.episodes for each in folded.values()) == 1200


def test_a_key_of_a_recipe_is_a_parameter_s_name_that_mlflow_takes():
    plain = ("learner.lr", "environment.options.weights.exact_match", "generators.engine.max-num-seqs")
    assert [parameter_name(key) for key in plain] == list(plain)
    users = ("f1@5", "größe", "a b", "", "..", "x" * 400, "1/2", "f1#5", "\x1b[31m")
    keys = [f"environment.options.{user}" for user in users] + ["o." + ".".join(["y" * 50] * 9)]
    names = list(map(parameter_name, keys))
    for name in names:
        _validate_param_name(name)
        assert len(name) <= LONGEST_PARAMETER
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("path", "stays"),
    [
        ("own/a b", True),
        ("own/a:b/ä.c-d_", True),
        ("own/pass@4", False),
        ("own/x (%)", False),
        ("own/", False),
        ("own/a//b", False),
        ("own/../x", False),
        ("own/line\n", False),
        ("own/" + "x" * 300, False),
        ("/".join(["own", *("y" * 50,) * 9]), False),
    ],
)
def test_a_metric_of_the_users_own_has_a_name_that_mlflow_takes(path: str, stays: bool):
    name = metric_name(path)
    assert (name == path) is stays
    assert name.startswith("own/")
    assert len(name) <= MAX_ENTITY_KEY_LENGTH
    _validate_metric_name(name)
    assert metric_name(path + "@") != name
