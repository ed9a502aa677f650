"""Packed tokens for the tests of the mathematics, and the same rows as plain Python numbers."""

import msgspec
import torch
from hypothesis import strategies as st

from asyncrl.core.recipe.algorithm import AlgorithmConfig
from asyncrl.core.recipe.correction import CorrectionConfig
from asyncrl.core.recipe.loss import PpoClipLossConfig
from asyncrl.learners.algorithm.loss_tokens import LossTokens
from asyncrl.learners.algorithm.segments import Segments


def decoupled(**options):
    """A correction in which the ratio's anchor is the policy before the step, and each token has a truncated weight."""
    return CorrectionConfig(**({"anchor": "proximal_recomputed", "weight": "token"} | options))


def decoupled_ppo(**options):
    """PPO's clip around the policy before the step, with weights for having sampled with others."""
    return AlgorithmConfig(**({"loss": PpoClipLossConfig(), "correction": decoupled()} | options))


LOGP = st.floats(-6, -0.02)


class Token(msgspec.Struct, frozen=True):
    """One sampled token, every number a Python float."""

    theta: float
    proximal: float
    behaviour: float
    mask: bool
    staleness: int
    turn: int


class Row(msgspec.Struct, frozen=True):
    tokens: tuple[Token, ...]
    advantage: float
    share: float = 1.0


TOKENS = st.builds(Token, LOGP, LOGP, LOGP, st.sampled_from([True, True, True, False]), st.integers(0, 4), st.just(0))


@st.composite
def rows_of_tokens(draw, min_rows=1, max_rows=4, max_tokens=5):
    """Rows of one or more turns; a row may be fully masked or a single token."""
    rows = []
    for _ in range(draw(st.integers(min_rows, max_rows))):
        tokens = draw(st.lists(TOKENS, min_size=1, max_size=max_tokens))
        turn, numbered = 0, []
        for token in tokens:
            turn += draw(st.booleans()) if numbered else 0
            numbered.append(msgspec.structs.replace(token, turn=turn))
        advantage = draw(st.floats(-3, 3).filter(lambda value: abs(value) > 1e-3))
        rows.append(Row(tuple(numbered), advantage, draw(st.sampled_from([1.0, 0.5, 3.0]))))
    return rows


def pack_tokens(rows, singled_out=None):
    """``(logp_theta, logp_proximal, LossTokens)`` of the rows laid end to end."""
    flat = [(number, token) for number, row in enumerate(rows) for token in row.tokens]
    turns = {name: index for index, name in enumerate(dict.fromkeys((number, token.turn) for number, token in flat))}

    def column(values, dtype=torch.float32):
        return torch.tensor(list(values), dtype=dtype)

    tokens = LossTokens(
        logp_behaviour=column(token.behaviour for _, token in flat),
        advantages=column(rows[number].advantage for number, _ in flat),
        mask=column((token.mask for _, token in flat), torch.bool),
        share=column(rows[number].share for number, _ in flat),
        staleness=column((token.staleness for _, token in flat), torch.int32),
        rows=Segments(column((number for number, _ in flat), torch.int64), len(rows)),
        turns=Segments(column((turns[number, token.turn] for number, token in flat), torch.int64), len(turns)),
        singled_out=torch.zeros(len(flat), dtype=torch.bool) if singled_out is None else singled_out,
        max_staleness=4,
    )
    return column(token.theta for _, token in flat), column(token.proximal for _, token in flat), tokens
