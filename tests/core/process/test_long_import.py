import gc
from contextlib import suppress

import pytest

from asyncrl.core.process.long_import import long_import


@pytest.mark.parametrize("collected", [True, False])
def test_garbage_is_looked_for_afterwards_as_before_even_after_an_error(collected: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if collected else gc.disable)()
        with long_import():
            assert not gc.isenabled()
        assert gc.isenabled() == collected
        with suppress(ImportError), long_import():
            raise ImportError
        assert gc.isenabled() == collected
    finally:
        (gc.enable if was else gc.disable)()
