from pathlib import Path

import pytest
from whole_run import small_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model that whole runs begin with: they only read it, and making it takes seconds."""
    return small_model(tmp_path_factory.mktemp("tiny"))
