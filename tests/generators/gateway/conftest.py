import pytest
from played import protocols_of, write_model

from asyncrl.generators.gateway.protocols import Protocols


@pytest.fixture(scope="session")
def protocols(tmp_path_factory: pytest.TempPathFactory) -> Protocols:
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return protocols_of(folder)
