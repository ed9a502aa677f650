"""Asks a teacher on a vLLM server for the log-probabilities of given tokens, and finds out whether the server suits a policy."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import ComponentFailed, DeadlineExceeded, FailureKind, RecipeError, ScoringFailed
from asyncrl.core.recipe.teacher import TeacherConfig
from asyncrl.envs.secrets import Secrets
from asyncrl.run.reward.json_service import FIRST_RETRY_S, JsonService, KeyRefused
from asyncrl.run.reward.service_tokens import token_of

REQUESTS = 16
"""Requests that a generator makes at once. The server batches what it gets."""
ANSWER_BYTES, TOKEN_BYTES = 64 * 1024, 512
"""The longest answer that is read: ``ANSWER_BYTES``, and ``TOKEN_BYTES`` more for each token."""
TOKENS_AT_ONCE = 4096
"""Tokens of the vocabulary that one request of a check asks the text of."""
PLACE, COMPLETIONS = "algorithm.teacher", "/v1/completions"
FEW_TOKENS = (0, 1, 2)
"""What a check asks the probability of; every vocabulary has these ids."""


class _Given(msgspec.Struct, frozen=True):
    logprob: float


class _Choice(msgspec.Struct, frozen=True):
    prompt_logprobs: tuple[dict[str, _Given] | None, ...]


class _Completion(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...]


class _Served(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Served, ...]


class _Text(msgspec.Struct, frozen=True):
    prompt: str


def _service(teacher: TeacherConfig, secrets: Secrets, path: str, first_retry_s: float = FIRST_RETRY_S) -> JsonService:
    url = f"{(teacher.url or '').rstrip('/').removesuffix('/v1')}{path}"
    name, token = f"the teacher at {teacher.url}", token_of(teacher, secrets)
    return JsonService(name, url, teacher.timeout_s, PLACE, token=token, first_retry_s=first_retry_s)


class RemoteTeacher:
    """A teacher on a vLLM server; see :class:`asyncrl.generators.scoring.Teacher`. It is asked as :class:`JsonService` is.

    Args:
        secrets: have the server's token, if it wants one.
        client: the asking generator's name, for error messages.
        deadline_s: how long the answer for a row may take, waiting for its turn and repeated requests included.
        first_retry_s: wait before a request is made for the second time; each further wait is twice as long.
    """

    def __init__(
        self,
        teacher: TeacherConfig,
        secrets: Secrets,
        client: str,
        deadline_s: float,
        *,
        first_retry_s: float = FIRST_RETRY_S,
    ) -> None:
        self._client, self._deadline_s = client, deadline_s
        self._service = _service(teacher, secrets, COMPLETIONS, first_retry_s)
        self._turn = asyncio.Semaphore(REQUESTS)

    async def logprobs(self, row: np.ndarray) -> np.ndarray:
        """Return the log-probabilities of a row's tokens but the first.

        Raises:
            ScoringFailed: they did not come in time.
            ComponentFailed: the server refuses the request, or answers for other tokens.
        """
        owner, remedy = self._service.name, "raise deadlines.reward"
        try:
            async with deadline(self._deadline_s, waiter=self._client, owner=owner, remedy=remedy), self._turn:
                return await self._ask(row.tolist())
        except DeadlineExceeded as late:
            raise ScoringFailed(FailureKind.INFRASTRUCTURE, f"{late}; the last time {self._service.last_problem}") from late

    async def _ask(self, tokens: Sequence[int]) -> np.ndarray:
        return _given(self._service, await self._service.answer(*_asked(tokens), _Completion, "prompt_logprobs"), tokens)


def _asked(tokens: Sequence[int]) -> tuple[bytes, int]:
    """Return the request for the log-probabilities of tokens, and the most bytes of its answer.

    The server samples at least one token. The prompt's log-probabilities are at temperature 1, whatever that of sampling.
    """
    request = {"prompt": tokens, "max_tokens": 1, "prompt_logprobs": 0, "add_special_tokens": False}
    return msgspec.json.encode(request), ANSWER_BYTES + TOKEN_BYTES * len(tokens)


def _given(service: JsonService, answer: _Completion, tokens: Sequence[int]) -> np.ndarray:
    found = [] if not answer.choices else answer.choices[0].prompt_logprobs[1:]
    if len(found) != len(tokens) - 1 or any(
        not given or str(own) not in given for given, own in zip(found, tokens[1:], strict=True)
    ):
        raise ComponentFailed(
            f"{service.name} answered with log-probabilities of {len(found)} tokens that are not the {len(tokens) - 1} "
            "it was asked about; it must be a vLLM server, and leave prompts as they are"
        )
    return np.array([given[str(own)].logprob for given, own in zip(found, tokens[1:], strict=True) if given], np.float32)


async def check_server(teacher: TeacherConfig, secrets: Secrets, policy: Path | None, max_context: int, seconds: float) -> None:
    """Check that the teacher on a server fits the policy: that it takes its longest episode, has its tokens, and says how
    probable given tokens are. It must be up, and may be busy.

    Args:
        secrets: have the server's token, if it wants one.
        policy: the folder with the policy's tokenizer; None if it is not made yet.
        seconds: how long its answers may take.

    Raises:
        RecipeError: it does not fit, or it is not a vLLM server that answers.
    """
    try:
        async with deadline(seconds, waiter="asyncrl", owner=f"the teacher at {teacher.url}", remedy="see its log"):
            models = await _service(teacher, secrets, "/v1/models").answer(None, ANSWER_BYTES, _Models, "models", patient=False)
            longest = min((each.max_model_len for each in models.data if each.max_model_len is not None), default=None)
            if longest is not None and longest <= max_context:
                problem = f"serves at most {longest} tokens, and needs one more than model.max_context {max_context}"
                raise RecipeError(
                    f"{PLACE}.url",
                    problem,
                    f"serve it with --max-model-len {max_context + 1}; `asyncrl serve --print` shows a command that takes this",
                )
            asked = _service(teacher, secrets, COMPLETIONS)
            answer = await asked.answer(*_asked(FEW_TOKENS), _Completion, "prompt_logprobs", patient=False)
            _given(asked, answer, FEW_TOKENS)
            if policy is not None:
                await _check_tokens(teacher, secrets, policy)
    except KeyRefused as error:
        raise RecipeError(f"{PLACE}.token_variable", error.problem, error.remedy) from error
    except (DeadlineExceeded, ComponentFailed) as error:
        raise RecipeError(f"{PLACE}.url", str(error), "name a vLLM server that is up") from error


async def _check_tokens(teacher: TeacherConfig, secrets: Secrets, policy: Path) -> None:
    """Compare the text of every token of the policy with what the server makes of it."""
    from tokenizers import Tokenizer

    tokenizer, service = Tokenizer.from_file(str(policy / "tokenizer.json")), _service(teacher, secrets, "/detokenize")

    async def differ(ids: Sequence[int]) -> bool:
        most = ANSWER_BYTES + TOKEN_BYTES * len(ids)
        served = await service.answer(msgspec.json.encode({"tokens": ids}), most, _Text, "text", patient=False)
        return _without_spaces(served.prompt) != _without_spaces(tokenizer.decode(ids, skip_special_tokens=False))

    known = sorted(tokenizer.get_vocab().values())
    for start in range(0, len(known), TOKENS_AT_ONCE):
        ids = known[start : start + TOKENS_AT_ONCE]
        if await differ(ids):
            while len(ids) > 1:
                half = ids[: len(ids) // 2]
                ids = half if await differ(half) else ids[len(half) :]
            problem = f"has another text for id {ids[0]}, which is {tokenizer.id_to_token(ids[0])!r} for the policy"
            raise RecipeError(f"{PLACE}.url", problem, "name a teacher with the policy's tokenizer")


def _without_spaces(text: str) -> str:
    """The text without what servers may tidy up."""
    return "".join(text.split())
