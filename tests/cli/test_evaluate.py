import pytest

from asyncrl.cli.evaluate import sort_words
from asyncrl.cli.main import main
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.errors import RecipeError
from asyncrl.run.evaluation.request import EvaluationRequest


def test_models_recipe_and_overrides_are_told_apart_in_any_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1e-4").mkdir()  # a folder is a model, whatever its name
    words = ["tiny", "evaluation.temperature=1", "my/recipe.yaml", "lr=1e-4", "~tracking.uri", "+pace=synchronous", "org/model"]
    assert sort_words(words, 4, (0, 20)) == EvaluationRequest(
        models=("tiny", "lr=1e-4", "org/model"),
        recipe="my/recipe.yaml",
        overrides=("evaluation.temperature=1", "~tracking.uri", "+pace=synchronous"),
        samples=4,
        versions=(0, 20),
    )
    assert sort_words(["runs/one", "quickstart"], None, ()).recipe == "quickstart"
    change = f"environment.options.note={300 * 'x'}"  # longer than any file's name
    assert sort_words(["tiny", change], None, ()).overrides == (change,)
    with pytest.raises(RecipeError, match=r"two recipes are named, a.yaml and quickstart"):
        sort_words(["tiny", "a.yaml", "quickstart"], None, ())


def test_a_refusal_starts_nothing_and_flags_may_stand_anywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "nowhere", "--samples", "2", "quickstart", "--json", "x.json"]) == ExitCode.REFUSED
    assert "model 'nowhere' does not exist" in capsys.readouterr().err
    (tmp_path / "runs").mkdir()
    assert main(["evaluate", "runs/gone", "quickstart"]) == ExitCode.REFUSED
    assert "model 'runs/gone' does not exist" in capsys.readouterr().err, "it is not taken for a model of the hub"
    assert [path.name for path in tmp_path.rglob("*")] == ["runs"]


@pytest.mark.parametrize("flags", [["--samples", "0"], ["--version", "last"], ["--version", "1,"], ["--json", "no/where.json"]])
def test_wrong_usage_exits_with_2(flags, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["evaluate", "tiny", "quickstart", *flags])
    assert caught.value.code == 2
    assert flags[0] in capsys.readouterr().err
