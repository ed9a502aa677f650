"""The tiny model on disk: made once for each set of inputs that determine it, and found in the cache from then on.

What always holds: an entry appears whole or not at all, because it is made in a folder of its own and renamed into
place. Its last file, ``complete.json``, holds the digests of all other files; an entry that does not match them is made
again. Two processes may make the same entry at once: the first to finish wins, and the other uses its entry.
"""

import contextlib
import errno
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from asyncrl.core.files.cache_folder import cache_folder
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.envs import signature
from asyncrl.envs.lessons import demonstrations
from asyncrl.envs.lessons.find_lessons import lessons_digest
from asyncrl.learners.tiny.settings import WarmUp

if TYPE_CHECKING:
    from asyncrl.learners.tiny.making import Judge

COMPLETE = "complete.json"

_DEFAULT_WARM_UP = WarmUp()


class TinyProgress(msgspec.Struct, frozen=True):
    """Progress in making the tiny model: ``fraction``, a share in [0, 1] that never falls, and a ``text``."""

    fraction: float
    text: str


def default_cache_root() -> Path:
    """The folder ``$ASYNCRL_CACHE/tiny``, or ``~/.cache/asyncrl/tiny`` if the variable is not set."""
    return cache_folder() / "tiny"


def ensure_tiny_model(
    environments: Mapping[str, ClassEnvironmentConfig],
    seed: int,
    progress: Callable[[TinyProgress], None],
    cache_root: Path | None = None,
    settings: WarmUp = _DEFAULT_WARM_UP,
    judge: "Judge | None" = None,
) -> Path:
    """Return the Hugging Face folder of the tiny model, which is made first if it is not in the cache. That takes about
    a minute on two cores.

    Args:
        environments: the environments that the model is made for, by member of the recipe.
        seed: seed of the initial weights, the demonstrations and their order.
        progress: called with the progress so far; not called if the model is in the cache.
        cache_root: the cache's folder; by default :func:`default_cache_root`.
        settings: settings of the warm-up.
        judge: lets the finished model play, to see whether it has learned what it should. Without one, that is concluded
            from the model's first choices at each token of ideal demonstrations.

    Raises:
        RecipeError: an environment, or its options, are wrong.
        LessonFailed: an environment has no lessons, or they cannot be taught.
        WarmUpFailed: the warm-up did not teach the model what it should.
    """
    root = cache_root or default_cache_root()
    entry = root / _key(environments, seed, settings)
    if not _is_whole(entry):
        root.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".making-", dir=root))
        try:
            # Imported late: torch and transformers take seconds to import, and a model in the cache needs neither.
            from asyncrl.learners.tiny.making import make

            make(made, environments, seed, settings, lambda fraction, text: progress(TinyProgress(fraction, text)), judge)
            (made / COMPLETE).write_bytes(msgspec.json.format(msgspec.json.encode(_digests(made))))
            _publish(made, entry)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return entry


def found_tiny_model(environments: Mapping[str, ClassEnvironmentConfig], seed: int) -> Path | None:
    """Return the folder of the tiny model if it is in the cache. Arguments and errors: see :func:`ensure_tiny_model`."""
    entry = default_cache_root() / _key(environments, seed, _DEFAULT_WARM_UP)
    return entry if _is_whole(entry) else None


def _key(environments: Mapping[str, ClassEnvironmentConfig], seed: int, settings: WarmUp) -> str:
    """Digest of everything that determines the model: names and options of the environments, their code and that of their
    lessons, seed, settings, the code that makes the model, and the versions of its libraries."""
    named = [(name, each.name, each.options, lessons_digest(each)) for name, each in environments.items()]
    digest = hashlib.sha256(msgspec.json.encode([named, seed, settings], order="deterministic"))
    for source in (*sorted(Path(__file__).parent.glob("*.py")), Path(demonstrations.__file__), Path(signature.__file__)):
        digest.update(source.read_bytes())
    for library in ("torch", "transformers", "tokenizers"):
        digest.update(f"{library} {version(library)}".encode())
    return digest.hexdigest()[:20]


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.iterdir() if path.name != COMPLETE)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _is_whole(entry: Path) -> bool:
    try:
        expected = msgspec.json.decode((entry / COMPLETE).read_bytes(), type=dict[str, str])
        return expected == _digests(entry)
    except (OSError, msgspec.DecodeError):
        return False


def _publish(made: Path, entry: Path) -> None:
    """Rename ``made`` to ``entry``, unless another process has put a whole entry there. A broken entry is moved away
    first."""
    while True:
        try:
            made.rename(entry)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if _is_whole(entry):
            return
        broken = Path(tempfile.mkdtemp(prefix=".broken-", dir=entry.parent))
        with contextlib.suppress(FileNotFoundError):  # another process moved it away first
            entry.rename(broken)
        shutil.rmtree(broken)
