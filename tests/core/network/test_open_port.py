import socket
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from asyncrl.core.network.open_port import held_port


@pytest.mark.parametrize("libuv", [True, False])
def test_a_port_that_is_held_is_for_whoever_listens_on_it_as_torchs_stores_do(libuv: bool) -> None:
    with held_port("127.0.0.1") as holding, socket.socket() as other:
        port = holding.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        store = TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60), use_libuv=libuv
        )
        store.set("version", "3")
        assert store.get("version") == b"3"
