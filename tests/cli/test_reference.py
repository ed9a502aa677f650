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
    assert "## `tasks`, `kind: files`" in text
    assert "| `tasks.train` | a list of sections, see [tasks.train[]](#taskstrain) | required |" in text
    assert "| `tasks.train[].weight` | a number > 0 | `1.0` |" in text
    assert "| `tasks.curriculum` | a section or null, see [tasks.curriculum](#taskscurriculum) | `null` |" in text
    assert "| `buffer.filters` | a list of sections of kind `zero_variance` or `accuracy_window` | `[]` |" in text
    assert "## `algorithm.loss`, `kind: dppo` (default)" in text
