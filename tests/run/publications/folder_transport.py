"""The smallest transport: publications through a plain folder, which every node sees under the same path.

It shows what a transport needs, and is of no use beside kind ``disk``: the driver copies, so the ranks must be on its node.
"""

import asyncio
import shutil
from collections import defaultdict, deque
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from asyncrl.core.deadline import deadline
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, WeightFile
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.section import Text
from asyncrl.core.recipe.weights import PublicationSection
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.shared_work import SharedWork
from asyncrl.run.publications.transport import PublicationTransport, Routes


class FolderWeightsConfig(PublicationSection, frozen=True, kw_only=True, tag_field="kind", tag="folder"):
    """Through ``folder``."""

    folder: Text


class FolderTransport(PublicationTransport):
    """Copies each version once, for all nodes, and keeps the last two that each node has fetched."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._copying = SharedWork[PolicyVersion, tuple[WeightFile, ...]]()
        self._last = defaultdict[str, deque[PolicyVersion]](lambda: deque(maxlen=2))

    @classmethod
    def for_run(cls, recipe: Recipe, folder: RunFolder) -> Self:
        assert isinstance(recipe.weights, FolderWeightsConfig)
        return cls(Path(recipe.weights.folder), recipe.deadlines.publish)

    @classmethod
    def describe(cls, routes: Routes) -> str:
        assert isinstance(routes.recipe.weights, FolderWeightsConfig)
        return f"{routes.recipe.weights.folder} to {routes.counted(routes.engines)}, since the recipe asks for it"

    async def fetch_to_node(self, publication: Publication, node: str) -> Publication:
        version = publication.version
        copies = await self._copying.result(version, partial(self._copy, publication), f"version {version} to {self._folder}")
        if version not in self._last[node]:
            self._last[node].append(version)
        self._remove_all_but({each for last in self._last.values() for each in last})
        return msgspec.structs.replace(publication, files=tuple(msgspec.structs.replace(file, node=node) for file in copies))

    async def _copy(self, publication: Publication) -> tuple[WeightFile, ...]:
        folder = self._folder / str(publication.version)
        folder.mkdir(parents=True)
        copies = [WeightFile(str(folder / str(number)), "", file.size) for number, file in enumerate(publication.files)]
        async with deadline(self._seconds, waiter="the driver", owner=str(folder), remedy="raise deadlines.publish"):
            for file, copy in zip(publication.files, copies, strict=True):
                await asyncio.to_thread(shutil.copyfile, file.path, copy.path)
        return tuple(copies)

    def _remove_all_but(self, needed: set[PolicyVersion]) -> None:
        for folder in self._folder.iterdir():
            if int(folder.name) < min(needed):
                shutil.rmtree(folder)

    async def close(self, seconds: float) -> None:
        self._copying.cancel()
        shutil.rmtree(self._folder, ignore_errors=True)
