"""The tiny model on disk: made once for each set of things that determine it, and found again ever after.

An entry appears whole or not at all: it is made in a folder of its own and renamed into place. Its last file, ``complete.json``,
holds the digest of every other; an entry that does not match it is made anew. Two processes may make the same entry at once: the
first to finish wins, and the other uses it.
"""

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.recipe import schema
from asyncrl.envs import calculator, demonstrations, signature, tools
from asyncrl.envs.demonstrations import demonstrate, demonstrate_mistake
from asyncrl.envs.load import make_tasks
from learners.tiny.conversations import encode, render
from learners.tiny.tokenizer import fit_tokenizer
from learners.tiny.warmup import CONTEXT_LENGTH, Measurement, WarmUp, warm_up

COMPLETE = "complete.json"
CACHE_VARIABLE = "ASYNCRL_CACHE"

_TRAINING_TASKS = 6000
_HELD_OUT_TASKS = 300
_TOKENIZER_TASKS = 300
_TYPICAL_STEPS = 150
_DEFAULT_WARM_UP = WarmUp()


class TinyProgress(msgspec.Struct, frozen=True):
    """How far making the model is: a share in [0, 1], which never falls, and words."""

    fraction: float
    text: str


def default_cache_root() -> Path:
    """``$ASYNCRL_CACHE/tiny``, or ``~/.cache/asyncrl/tiny``."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "asyncrl") / "tiny"


def ensure_tiny_model(
    environment_options: Mapping[str, Any],
    seed: int,
    progress: Callable[[TinyProgress], None],
    cache_root: Path | None = None,
    settings: WarmUp = _DEFAULT_WARM_UP,
) -> Path:
    """The Hugging Face folder of the tiny model, made now if it is not in the cache; takes under a minute on two cores.

    Args:
        environment_options: of the calculator environment that it is made for.
        seed: of its initial weights, its demonstrations and their order.
        progress: is told how far it is; not called if the model is found.
        cache_root: default :func:`default_cache_root`.

    Raises:
        RecipeError: the options do not fit the environment.
        WarmUpFailed: the warm-up did not get where it should.
    """
    environment = schema.Environment(name="calculator", options=dict(environment_options))
    root = cache_root or default_cache_root()
    entry = root / _key(environment, seed, settings)
    if not _is_whole(entry):
        root.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".making-", dir=root))
        try:
            _make(made, environment, seed, settings, progress)
            _publish(made, entry)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return entry


def _make(
    folder: Path, environment: schema.Environment, seed: int, settings: WarmUp, progress: Callable[[TinyProgress], None]
) -> None:
    progress(TinyProgress(0.0, "fitting the tokenizer"))
    tasks = make_tasks(environment, "train", _TRAINING_TASKS, seed)
    training = [demonstrate(task) for task in tasks]
    held_out = [demonstrate(task) for task in make_tasks(environment, "evaluation", _HELD_OUT_TASKS, seed)]
    fitting = [*training[:_TOKENIZER_TASKS], *map(demonstrate_mistake, tasks[:_TOKENIZER_TASKS])]
    tokenizer = fit_tokenizer(render(fitting), CONTEXT_LENGTH)

    fraction = 0.0

    def report(measurement: Measurement) -> None:
        nonlocal fraction
        solved = measurement.success.mean_greedy
        fraction = max(fraction, 0.8 * min(1.0, measurement.step / _TYPICAL_STEPS) + 0.2 * min(1.0, solved / settings.highest))
        progress(TinyProgress(fraction, f"step {measurement.step}: {solved:.0%} of held-out tasks solved"))

    model, measured = warm_up(tokenizer, encode(training, tokenizer), encode(held_out, tokenizer), settings, seed, report)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "warm_up.json").write_bytes(msgspec.json.format(msgspec.json.encode(measured)))
    (folder / COMPLETE).write_bytes(msgspec.json.format(msgspec.json.encode(_digests(folder))))
    progress(TinyProgress(1.0, f"{measured.success.mean_greedy:.0%} of held-out tasks solved after {measured.step} steps"))


def _key(environment: schema.Environment, seed: int, settings: WarmUp) -> str:
    """Digest of all that determines the model: options, seed, settings, the code that makes it and the libraries it uses."""
    digest = hashlib.sha256(msgspec.json.encode([environment.options, seed, settings], order="deterministic"))
    sources = [
        *sorted(Path(__file__).parent.glob("*.py")),
        *(Path(m.__file__) for m in (calculator, demonstrations, signature, tools)),
    ]
    for source in sources:
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
    """Rename ``made`` to ``entry``, in whose place another process may have put its own, or a broken one may lie."""
    while not _rename(made, entry):
        if _is_whole(entry):
            return
        broken = Path(tempfile.mkdtemp(prefix=".broken-", dir=entry.parent))
        _rename(entry, broken)
        shutil.rmtree(broken)


def _rename(source: Path, target: Path) -> bool:
    """Whether it worked; not if ``target`` is a folder that holds something, or ``source`` has gone."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            return False
        raise
    return True
