"""A cache of token ids with a limit in bytes. When it is full, the least recently used entry is removed first."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

_OVERHEAD = 300
"""Bytes that an entry takes in addition to its key and its ids."""


class TokenCache:
    """Caches token ids by key. Several threads may use it at once.

    Args:
        limit: most bytes of all entries together, keys included. A single entry larger than this is not kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._entries: OrderedDict[bytes, array[int]] = OrderedDict()  # the most recently used entry is last
        self._lock = Lock()

    def get(self, key: bytes) -> list[int] | None:
        """Return a new list of the ids of ``key``; None if the cache does not have them."""
        with self._lock:
            ids = self._entries.get(key)
            if ids is None:
                return None
            self._entries.move_to_end(key)
        return ids.tolist()

    def keep(self, key: bytes, token_ids: Sequence[int]) -> None:
        """Remember the ids of ``key``."""
        ids = array("i", token_ids)
        size = _size(key, ids)
        if size > self._limit:
            return
        with self._lock:
            if key in self._entries:  # another thread has added it meanwhile
                return
            self._entries[key] = ids
            self._size += size
            while self._size > self._limit:
                self._size -= _size(*self._entries.popitem(last=False))


def _size(key: bytes, ids: "array[int]") -> int:
    return len(key) + ids.itemsize * len(ids) + _OVERHEAD
