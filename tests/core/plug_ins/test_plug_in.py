"""Modules that a recipe names."""

from pathlib import Path

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.core.plug_ins.plug_in import load_class


@pytest.mark.parametrize("call", ["asyncrl.launch('quickstart')", "asyncrl.evaluate('tiny', 'quickstart')"])
def test_a_module_may_not_start_what_would_import_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Each process would import it, and start another."""
    name = f"endless_{call[8]}"
    (tmp_path / f"{name}.py").write_text(f"import asyncrl\nclass Mine: pass\n{call}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RecipeError, match="when it is imported; put the call under `if __name__ == '__main__':`"):
        load_class(f"{name}:Mine", "environment.name")
