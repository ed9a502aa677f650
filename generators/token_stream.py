"""The token stream of an episode, which grows turn by turn in the order in which the engine saw the tokens."""

from collections.abc import Sequence

import msgspec
import numpy as np

from asyncrl.core.ids import NOT_SAMPLED, PolicyVersion
from asyncrl.core.messages import CallRecord
from asyncrl.core.routed_experts import RoutedExperts, joined
from asyncrl.core.trajectory import Trajectory, Turn, VersionSpan
from asyncrl.generators.completion import Completion


class TokenStream:
    """Collects the tokens of an episode. Keeps the invariants of :class:`asyncrl.core.trajectory.Trajectory`.

    Attributes:
        token_ids: all tokens so far; tokens are only appended.
        turns: the sampled turns so far; a turn's reward and calls become known after its tokens.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.turns: list[Turn] = []
        self._spans: list[VersionSpan] = []
        self._logprobs: list[np.ndarray] = []
        self._experts: list[RoutedExperts] = []

    def append_given(self, token_ids: Sequence[int]) -> None:
        """Append tokens that the policy did not sample."""
        self._append_span(len(token_ids), NOT_SAMPLED)
        self._logprobs.append(np.zeros(len(token_ids), np.float32))
        self.token_ids.extend(token_ids)

    def append_turn(self, completion: Completion, seconds: float) -> None:
        """Append a turn that took ``seconds`` to sample; its reward is 0 until :meth:`answer_turn`."""
        start = len(self.token_ids)
        for span in completion.spans:
            self._append_span(span.end - span.start, span.version)
        self._logprobs.append(completion.logprobs)
        if completion.experts is not None:
            self._experts.append(completion.experts)
        self.token_ids.extend(completion.token_ids.tolist())
        self.turns.append(Turn(start, len(self.token_ids), 0.0, generating_s=seconds))

    def answer_turn(
        self, reward: float, calls: tuple[CallRecord, ...], seconds: float, rewards: dict[str, float] | None = None
    ) -> None:
        """Note what the environment made of the last turn, with the named parts of its reward, and the ``seconds`` it took."""
        answered = {"reward": reward, "calls": calls, "environment_s": seconds, "rewards": rewards or {}}
        self.turns[-1] = msgspec.structs.replace(self.turns[-1], **answered)

    def _append_span(self, length: int, version: PolicyVersion) -> None:
        if length == 0:
            return
        start = self._spans[-1].end if self._spans else 0
        end = start + length
        if self._spans and self._spans[-1].version == version:
            start = self._spans.pop().start
        self._spans.append(VersionSpan(start, end, version))

    def __len__(self) -> int:
        return len(self.token_ids)

    def trajectory(self) -> Trajectory:
        """Return the record of the stream so far, as the first and only one of its episode."""
        return Trajectory(
            token_ids=np.array(self.token_ids, np.int32),
            logprobs=self.logprobs,
            loss_mask=self.loss_mask,
            version_spans=self.version_spans,
            turns=tuple(self.turns),
            experts=self.experts,
        )

    @property
    def version_spans(self) -> tuple[VersionSpan, ...]:
        """Which policy version sampled which tokens."""
        return tuple(self._spans)

    @property
    def known_experts(self) -> int:
        """Of how many leading tokens the experts are known."""
        return sum(map(len, self._experts))

    @property
    def experts(self) -> RoutedExperts | None:
        """The experts that the leading tokens went to, if the engine says."""
        return joined(self._experts)

    @property
    def logprobs(self) -> np.ndarray:
        """float32 [T]: log-probability of each sampled token, 0 elsewhere."""
        return np.concatenate(self._logprobs) if self._logprobs else np.zeros(0, np.float32)

    @property
    def loss_mask(self) -> np.ndarray:
        """bool [T]: true where the policy sampled the token."""
        mask = np.zeros(len(self), bool)
        for turn in self.turns:
            mask[turn.start : turn.end] = True
        return mask
