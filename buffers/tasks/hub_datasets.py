"""Data sets that a recipe names by their id on the Hugging Face hub, such as ``openai/gsm8k``, and their files on this machine.

Only the files of the split that is read are fetched. What was fetched once is taken from the hub's cache on this machine
(``HF_HOME``), also without a network. A file or folder of the same name comes first.
"""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.hub import ANSWER_S, DATA_SET, is_commit, is_hub_id, is_offline, parts, translated
from asyncrl.core.recipe.tasks import TaskFileConfig

_SHARD = re.compile(r"-\d+(-of-\d+)?(-[0-9a-f]+)?$")
"""End of the name of a file with one part of a split: train-00000-of-00002, train-00000-of-00002-4f3a9c."""
_FILES = (".parquet", ".jsonl", ".json")
_NO_DATA = ("dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json")
_CARD = "README.md"
_MAIN = "main"
"""The revision of a data set of which none is named."""


def is_on_hub(path: str) -> bool:
    """Return whether ``path`` names a data set of the hub, as ``organisation/name`` or ``organisation/name@revision``."""
    return is_hub_id(path) and not path.endswith(_FILES)


def name_of(path: str) -> str:
    """Return a path without the revision of the hub that it names."""
    return path.partition("@")[0] if is_on_hub(path) else path


def splits_of(files: Iterable[PurePosixPath | Path], suffixes: Sequence[str] = (".parquet", ".jsonl")) -> dict[str, list[Any]]:
    """Sort the files of a dataset repository by split: by what their name begins with, or by folder if the name is a number."""
    splits: dict[str, list[Any]] = {}
    for path in sorted(files):
        hidden = any(part.startswith(".") for part in path.parts)
        if path.suffix in suffixes and not hidden and path.name not in _NO_DATA:
            name = path.parent.name if path.stem.isdigit() else _SHARD.sub("", path.stem)
            splits.setdefault(name, []).append(path)
    return splits


def pinned(path: str, place: str) -> str:
    """Return the id with the commit that it means now, so that a resumed run reads the same data; what is here stays as it is.

    Raises:
        RecipeError: the hub has no such data set, or cannot be asked.
    """
    if not is_on_hub(path) or is_commit(path.partition("@")[2]):
        return path
    return f"{name_of(path)}@{_Repository.find(path, place).commit}"


def subset_files(file: TaskFileConfig, place: str) -> tuple[Path, list[Path]]:
    """Return the folder of a data set on this machine, and its files of the split that ``file`` names, in order.

    Raises:
        RecipeError: the hub has no such data set, or cannot be asked; or it is not clear which split or subset is meant.
    """
    repository = _Repository.find(file.path, place)
    names = _chosen(repository, file, place)
    folder = repository.fetch(names)
    return folder, [folder / name for name in names]


class _Repository(NamedTuple):
    """A data set at one commit, and the names of its files."""

    path: str
    place: str
    commit: str
    names: tuple[str, ...]
    reachable: bool

    @classmethod
    def find(cls, path: str, place: str) -> "_Repository":
        """Ask the hub, or else the cache of this machine."""
        if find_spec("huggingface_hub") is None:
            problem = f"there is no file or folder {path!r}, and the library that fetches data sets of the hub is not installed"
            raise RecipeError(place, problem, "correct the path, or run `pip install huggingface_hub`")
        from huggingface_hub import HfApi

        repository, revision = parts(path)
        with translated(path, place, DATA_SET):
            if not is_offline():
                info = _asked(partial(HfApi().dataset_info, repository, revision=revision, timeout=ANSWER_S))
                if info is not None:
                    names = tuple(each.rfilename for each in info.siblings or ())
                    return cls(path, place, str(info.sha), names, reachable=True)
            commit = _known_commit(path)
        folder = _cached(path) / "snapshots" / commit
        here = (each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file())
        return cls(path, place, commit, tuple(here), reachable=False)

    def fetch(self, names: Sequence[str]) -> Path:
        """Fetch files that are not here yet, and return the folder in which they lie."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()  # the live view has the terminal
        fetched = partial(
            hf_hub_download,
            parts(self.path)[0],
            repo_type="dataset",
            revision=self.commit,
            local_files_only=not self.reachable,
        )
        with translated(self.path, self.place, DATA_SET):
            paths = [Path(str(fetched(filename=name))) for name in names]
        revision = parts(self.path)[1] or _MAIN
        if self.reachable and not is_commit(revision):  # so that it is known here what the revision meant
            named = _cached(self.path) / "refs" / revision
            named.parent.mkdir(parents=True, exist_ok=True)
            named.write_text(self.commit)
        return paths[0].parents[len(PurePosixPath(names[0]).parts) - 1]

    def configurations(self) -> dict[str, dict[str, list[str]]]:
        """Return the files of each split of each configuration that the data set's card names."""
        if _CARD not in self.names:
            return {}
        from huggingface_hub import metadata_load

        named: dict[str, dict[str, list[str]]] = {}
        card: Any = metadata_load(self.fetch([_CARD]) / _CARD) or {}
        for each in card.get("configs") or ():
            files = each.get("data_files") or ()
            parts = [{"split": "train", "path": files}] if isinstance(files, str) else files
            splits = named.setdefault(str(each.get("config_name", "default")), {})
            for part in parts if isinstance(parts, list) else ():
                split, paths = (str(part.get("split", "train")), part.get("path")) if isinstance(part, dict) else ("train", part)
                patterns = [paths] if isinstance(paths, str) else list(paths or ())
                splits[split] = [name for pattern in patterns for name in sorted(self.names) if fnmatchcase(name, str(pattern))]
        return named


def _chosen(repository: _Repository, file: TaskFileConfig, place: str) -> list[str]:
    """Choose the files of a subset and a split."""
    of = name_of(file.path)
    subsets: dict[str, dict[str, list[str]]] = repository.configurations()
    if not subsets:
        subsets = _by_folder(repository.names)
    if not subsets:
        remedy = f"name {of}@refs/convert/parquet, where the hub keeps most data sets as Parquet files, or another data set"
        raise RecipeError(place, f"{of} holds no Parquet or JSON files", remedy)
    subset = file.subset or ("default" if "default" in subsets else next(iter(subsets)) if len(subsets) == 1 else "")
    if subset not in subsets:
        known = ", ".join(filter(None, subsets))
        problem = f"{of} has no subset {file.subset!r}" if file.subset else f"{of} has several subsets"
        raise RecipeError(f"{place}.subset", problem, f"set it to one of {known}")
    splits = subsets[subset]
    split = file.split or (next(iter(splits)) if len(splits) == 1 else "")
    if not splits.get(split):
        problem = f"{of} has no split {file.split!r}" if file.split else f"{of} has several splits"
        raise RecipeError(f"{place}.split", problem, f"set it to one of {', '.join(splits)}")
    return splits[split]


def _by_folder(names: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """Sort files by subset and split, where the data set's card says nothing: each folder at the top but ``data`` is a subset."""
    folders: dict[str, list[PurePosixPath]] = {}
    for name in map(PurePosixPath, names):
        if name.suffix in _FILES:
            top = name.parts[0] if len(name.parts) > 1 and name.parts[0] != "data" else ""
            folders.setdefault(top, []).append(name)
    sorted_files = {top: splits_of(files, _FILES) for top, files in folders.items()}
    return {
        top: {split: [str(each) for each in files] for split, files in splits.items()}
        for top, splits in sorted_files.items()
        if splits
    }


def _cached(path: str) -> Path:
    """The folder of a data set in the hub's cache, whose layout its documentation describes."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"datasets--{parts(path)[0].replace('/', '--')}"


def _known_commit(path: str) -> str:
    """Return the commit that a revision meant when it was last asked for.

    Raises:
        LocalEntryNotFoundError: it never was, on this machine.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError

    revision, cached = parts(path)[1] or _MAIN, _cached(path)
    named = cached / "refs" / revision
    commit = named.read_text().strip() if named.is_file() else revision
    if not (cached / "snapshots" / commit).is_dir():
        raise LocalEntryNotFoundError(f"{cached} has no {revision}")
    return commit


def _asked(ask: Any) -> Any:
    """Ask the hub; None if it does not answer. That there is no such data set is an answer."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return ask()
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code >= 500:
            return None
        raise
    except Exception:  # noqa: BLE001 - what the client's transport raises has no public base class
        return None
