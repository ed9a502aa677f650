"""Files and folders of object stores that a recipe names, brought into this machine's cache.

What always holds: a file in the cache is whole; what has changed in the store is fetched anew, beside what was there before.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

from asyncrl.core.files.cache_folder import cache_folder
from asyncrl.core.storage.address import last_name, without_name
from asyncrl.core.storage.errors import StorageError, bucket
from asyncrl.core.storage.storage import Listed, Storage, leads_outside


def fetched(address: str, place: str, wanted: Callable[[str], bool] = lambda name: True) -> Path:
    """Return the path, in the cache, of the file or folder at ``address``, after fetching what is missing of it.

    Args:
        place: recipe key to blame.
        wanted: says by their names which files of a folder are needed.

    Raises:
        RecipeError: there is nothing, or the store refuses.
        OSError: the disk refuses.
    """
    try:
        storage, single, there = Storage(address), "", dict[str, Listed]()
        if last_name(address) != bucket(address):  # a whole bucket is no file
            above, name = Storage(without_name(address)), last_name(address)
            if there := above.listing_of(name):
                storage, single = above, name
        there = there or storage.listing()
        if not there:
            raise StorageError(address, "there is nothing", "correct the address")
        folder = cache_folder() / "fetched" / _fingerprint(address, there) / ("" if single else last_name(address))
        names = [name for name in there if (single or wanted(name)) and not _is_there(folder / name, there[name])]
        if any(map(leads_outside, names)):
            raise StorageError(address, "it names files outside its own folder", "see who wrote it; nothing was read")
        storage.fetch_all({name: folder / name for name in names})
        folder.mkdir(parents=True, exist_ok=True)
        return folder / single
    except StorageError as error:
        raise error.of_key(place) from error


def _is_there(path: Path, listed: Listed) -> bool:
    return path.is_file() and path.stat().st_size == listed.size


def _fingerprint(address: str, there: dict[str, Listed]) -> str:
    said = [address, *(f"{name} {each.size} {each.written_ns}" for name, each in sorted(there.items()))]
    return hashlib.blake2b("\n".join(said).encode(), digest_size=12).hexdigest()
