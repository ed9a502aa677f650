"""A run's report ranks it among the runs of its name in the same folder."""

from made_episodes import row
from reported import Checked, make_run, page_of

from asyncrl.run.measures.summary import NO_GROUPS, EvaluationEnds
from asyncrl.run.report.neighbours import MOST, neighbours
from asyncrl.run.report.run_record import RunRecord


def made(parent, evaluation, *overrides):
    return make_run(parent, *overrides, rows=[row()], ledger=NO_GROUPS, warnings=(), evaluation=EvaluationEnds(0.4, evaluation))


def test_neighbours_are_ranked_with_what_sets_them_apart(tmp_path):
    run = made(tmp_path, 0.8)
    made(tmp_path, 0.9, "learner.lr=0.001", "seed=7").path.rename(tmp_path / "tonight")  # as `launch --as tonight` calls it
    made(tmp_path, None)
    made(tmp_path, 0.99, "name=quickstart-two")  # another name, which begins alike
    found = neighbours(RunRecord(run.path))
    assert [(each.own, each.row.evaluation, each.differs) for each in found] == [
        (False, 0.9, ("learner.lr=0.001", "seed=7")),
        (True, 0.8, ()),
        (False, None, ()),
    ]
    assert [each.gain for each in found] == [0.9 - 0.8, None, None]
    assert [round(each.length, 3) for each in found] == [1.0, 0.889, 0.0]
    text = Checked(page_of(run)).text
    assert "Beside its neighbours" in text
    assert "+0.100" in text


def test_a_run_alone_or_compared_by_hand_has_no_ranking(tmp_path):
    one = made(tmp_path, 0.8)
    assert neighbours(RunRecord(one.path)) == []
    assert "Beside its neighbours" not in Checked(page_of(one)).text
    assert "Beside its neighbours" not in Checked(page_of(one, made(tmp_path, 0.9))).text
    (one.path / "launched-in").unlink()  # as the folder of a model of an evaluation
    assert neighbours(RunRecord(one.path.rename(tmp_path / "policy"))) == []


def test_only_the_newest_are_shown_and_what_cannot_be_read_is_passed_over(tmp_path):
    run = made(tmp_path, 0.5)
    others = [made(tmp_path, 0.6, f"seed={seed}") for seed in range(1, MOST + 3)]
    others[-1].recipe.write_text("name: quickstart\n{")
    for hour, each in enumerate(others):
        each.path.rename(tmp_path / f"quickstart-20260101T{hour:02}0000Z")
    seeds = {each.differs[0] for each in neighbours(RunRecord(run.path)) if not each.own}
    assert seeds == {f"seed={seed}" for seed in range(2, MOST + 2)}


def test_what_a_neighbours_recipe_holds_is_text(tmp_path):
    run = made(tmp_path, 0.5)
    made(tmp_path, 0.6, "+environment.options.note='<b onclick=x>'")
    checked = Checked(page_of(run))
    assert "environment.options.note=<b onclick=x>" in checked.text
    assert "onclick" not in {name for name, _ in checked.attributes}
