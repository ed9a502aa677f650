from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from whole_run import small_model

from asyncrl.run.plan.model_check import ModelCheck
from asyncrl.run.plan.model_trial import asked, outcome_of


class TrialHere:
    """Tries a model in this process, in place of the process of a :class:`ModelCheck`."""

    returncode = 0

    def communicate(self, request: bytes = b"", timeout: float | None = None) -> tuple[bytes, bytes]:
        if not request:
            return b"", b""
        with ThreadPoolExecutor(1) as thread:  # the test may have an event loop of its own
            return b"\n" + msgspec.json.encode(thread.submit(outcome_of, asked(request)).result()), b""

    def kill(self) -> None:
        pass


@pytest.fixture
def tried_apart() -> None:
    """Have models be tried in processes of their own, as for a user; see :func:`tried_here`."""


@pytest.fixture(autouse=True)
def tried_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are tried in this process, which has imported what each new one would import for seconds."""
    if "tried_apart" not in request.fixturenames:
        monkeypatch.setattr(ModelCheck, "_start", lambda check: TrialHere())


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model that whole runs begin with: they only read it, and making it takes seconds."""
    return small_model(tmp_path_factory.mktemp("tiny"))
