"""Token ids that were computed before, within a bound in bytes: what was not asked for the longest is forgotten first."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

_OVERHEAD = 300
"""Bytes that an entry takes beside its key and its ids."""


class RememberedIds:
    """Token ids by key; may be used from several threads at once.

    Args:
        limit: bytes of all entries, keys included. An entry that would take more on its own is not kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._entries: OrderedDict[bytes, array[int]] = OrderedDict()  # what was asked for last stands last
        self._lock = Lock()

    def get(self, key: bytes) -> list[int] | None:
        """The ids of ``key`` in a list of the caller's own; None if they are not remembered."""
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
            if key in self._entries:  # another thread was faster
                return
            self._entries[key] = ids
            self._size += size
            while self._size > self._limit:
                self._size -= _size(*self._entries.popitem(last=False))


def _size(key: bytes, ids: "array[int]") -> int:
    return len(key) + ids.itemsize * len(ids) + _OVERHEAD
