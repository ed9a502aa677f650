from collections.abc import Iterator
from contextlib import closing

import pytest

from asyncrl.weights.shm.shared_tensors import SharedMemory


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedMemory]:
    """Writes publications, in place of a learner's rank."""
    with closing(SharedMemory("test", 0, str(tmp_path_factory.mktemp("shm")))) as writer:
        yield writer
