"""A deterministic engine without a model: what it "samples" is a function of the prompt, and time passes only at its events."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import numpy as np
from chat_tokenizers import make_tokenizer

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication
from asyncrl.core.trajectory import Sampling, VersionSpan
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.completion import Completion, EngineUse
from asyncrl.generators.concurrency import EngineLoad

Script = Callable[[str], str]
"""From the decoded row so far to the text of the next turn; the end-of-turn token follows unless the text is cut."""


class FakeEngine:
    """Answers by ``script``. ``gate`` holds back all requests until it is set; each token takes one pass of the event loop, and
    ``token_s``. A turn whose text ends with one of ``ends`` ends there."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.chat = ChatFormat(make_tokenizer())
        self.version = PolicyVersion(0)
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = self.most_running = self.tokens = self.waiting = 0
        self.cache_share = self.token_s = 0.0
        self.dead = False
        self.prompts: list[list[int]] = []
        self.temperatures: list[float] = []
        self.ends: tuple[int, ...] = ()

    def episode(self) -> AbstractContextManager["FakeEngine"]:
        return nullcontext(self)

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        known_experts: int = 0,
    ) -> Completion:
        self.prompts.append(list(token_ids))
        self.temperatures.append(sampling.temperature)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            text = self.script(self.chat.decode(token_ids))
            said = self.chat.tokenizer.encode(text, add_special_tokens=False)
            ids = (said if said and said[-1] in self.ends else [*said, stop_token_ids[0]])[:max_tokens]
            stopping = (
                end for end in range(1, len(ids)) if any(each in self.chat.decode(ids[:end]) for each in sampling.stop_texts)
            )
            ended = next(stopping, None)
            ids = ids[:ended]
            versions = []
            for _ in ids:
                await self.gate.wait()
                await asyncio.sleep(self.token_s)
                if self.dead:
                    raise ComponentFailed("the fake engine died")
                versions.append(self.version)
        finally:
            self.running -= 1
        self.tokens += len(ids)
        changes = [0, *(i for i in range(1, len(ids)) if versions[i] != versions[i - 1]), len(ids)]
        spans = tuple(VersionSpan(a, b, versions[a]) for a, b in pairwise(changes))
        return Completion(
            np.array(ids, np.int32), pseudo_logprobs(ids), spans, ended is not None or ids[-1] in (*stop_token_ids, *self.ends)
        )

    async def load_publication(self, publication: Publication) -> int:
        self.gate.clear()
        self.version = publication.version
        self.gate.set()
        return publication.fingerprint

    async def report_load(self) -> EngineLoad:
        return EngineLoad(self.running, self.waiting, self.cache_share)

    def use(self) -> EngineUse:
        return EngineUse(self.tokens)


def pseudo_logprobs(ids: Sequence[int]) -> np.ndarray:
    digests = (hashlib.blake2b(bytes(str((i, token)), "ascii"), digest_size=2).digest() for i, token in enumerate(ids))
    return np.array([-int.from_bytes(digest, "little") / 2**14 for digest in digests], np.float32)
