from pathlib import Path

from asyncrl.cli.reference import main, reference

COMMITTED = Path(__file__).parents[2] / "docs" / "recipe.md"


def test_the_committed_reference_is_current(tmp_path):
    main([str(tmp_path / "recipe.md")])
    assert (tmp_path / "recipe.md").read_text() == COMMITTED.read_text(), "run `python -m asyncrl.cli.reference`"


def test_ranges_defaults_and_kinds_are_told():
    text = reference()
    assert "| `learner.min_lr_ratio` | a number >= 0 and <= 1 | `1.0` |" in text
    assert "| `model.path` | text, not empty | required |" in text
    assert "## `tasks`, `kind: jsonl`" in text
    assert "## `algorithm.correction`, `kind: truncated_importance` (default)" in text
