"""A run is refused where it could not begin its processes, and only there."""

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.run.host import system_limits


def test_where_a_cluster_is_joined_its_processes_are_there_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_limits, "processes_left", lambda: 100)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(RecipeError, match="100 more processes and threads may begin here"):
        system_limits.check_limits()
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    system_limits.check_limits()
