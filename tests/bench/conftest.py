import pytest
import torch
from fork_server import WITH_MEGATRON

from asyncrl.bench import own_process
from asyncrl.bench.gpu import broadcast, isolated
from asyncrl.bench.weights import weights_parties


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements are made in processes forked from one that has imported everything, which spares each of them seconds.

    Not where there is a GPU: benchmarks hide it by a variable that is set when that process has been started.
    """
    if not torch.cuda.is_available():
        for module in (own_process, weights_parties, isolated, broadcast):
            monkeypatch.setattr(module, "get_context", lambda method: WITH_MEGATRON)
