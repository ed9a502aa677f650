"""A run is refused where it could not begin its processes, or has no home folder, and only there."""

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


def test_a_user_without_a_home_folder_is_refused_before_mlflow_does_in_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_limits, "processes_left", lambda: None)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)  # a number without a name, as in many containers
    with pytest.raises(RecipeError, match="user 4000000 has no home folder here, and MLflow asks for one; set HOME"):
        system_limits.check_limits()
