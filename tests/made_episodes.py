"""Makes kept episodes, without a run: rows of the schema, and the files of a run's folder."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from asyncrl.episodes.schema import SCHEMA, Kind, TokenFate

BEGAN = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)
PROMPT_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 6, 4, 3


def turn(start, text="<tool_call>add(3, 4)</tool_call>", answer="7", reward=0.0, calls=(), seconds=0.5):
    return {
        "start": start,
        "end": start + TURN_TOKENS,
        "text": text,
        "answer": answer,
        "reward": reward,
        "calls": [dict(zip(("tool", "seconds", "outcome", "problem"), call, strict=True)) for call in calls],
        "generating_s": seconds,
        "environment_s": 0.1 + sum(call[1] for call in calls),
    }


def row(step=1, turns=2, sampled_by=None, gap=0.01, **changed):
    """One training episode; with ``kind=Kind.EVALUATION`` one of an evaluation.

    Args:
        turns: how many, or the turns themselves.
        sampled_by: the policy version that sampled its tokens; by default the one before that which is trained.
    """
    kind = changed.pop("kind", Kind.TRAIN)
    version = changed.pop("version", step - 1 if kind is Kind.TRAIN else step)
    stride = TURN_TOKENS + ANSWER_TOKENS
    if isinstance(turns, int):
        calls = [("add", 0.2, "ok", "")]
        turns = [
            turn(PROMPT_TOKENS + i * stride, calls=calls, reward=float(i == turns - 1), answer="7" if i < turns - 1 else "")
            for i in range(turns)
        ]
    length = turns[-1]["end"] if turns else PROMPT_TOKENS
    versions, fates = np.full(length, -1), [TokenFate.GIVEN.value] * length
    for each in turns:
        versions[each["start"] : each["end"]] = max(version - 1, 0) if sampled_by is None else sampled_by
        fate = TokenFate.TRAINED if kind is Kind.TRAIN else TokenFate.NOT_TRAINED
        fates[each["start"] : each["end"]] = [fate.value] * TURN_TOKENS
    sampled = versions >= 0
    logprobs = np.where(sampled, -0.5, 0.0)
    of_training = kind is Kind.TRAIN
    return {
        "kind": kind.value,
        "step": step if of_training else None,
        "version": version,
        "environment": "calculator",
        "source": "generated",
        "task_id": f"train-{step}",
        "group_id": step * 10 if of_training else -1,
        "sample_index": 0,
        "attempt": 0,
        "part": 0,
        "parts": 1,
        "role": "",
        "parent": None,
        "shared": 0,
        "why": "first",
        "trained": True,
        "temperature": 1.0 if of_training else 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "logprob_convention": "full_softmax" if of_training else "greedy",
        "stop_reason": "environment_done",
        "reward": float(sum(each["reward"] for each in turns)),
        "role_rewards": [],
        "metrics": [("tool_calls", float(len(turns)))],
        "prompt": "user: 3 + 4 = ?",
        "turns": turns,
        "turn_rewards": [[("right", each["reward"])] for each in turns],
        "began": BEGAN + timedelta(seconds=step),
        "queued_s": 0.1,
        "reset_s": 0.2,
        "scoring_s": 0.0,
        "token_ids": np.arange(length),
        "versions": versions,
        "logprobs": logprobs,
        "learner_logprobs": np.where(sampled, logprobs - gap, 0.0) if of_training else None,
        "advantages": np.where(sampled, 0.7, 0.0) if of_training else None,
        "weights": np.where(sampled, 0.9, 0.0) if of_training else None,
        "traffic": None,
        "fates": fates,
        **changed,
    }


def write(run, rows, name="some"):
    """Write rows as one file of kept episodes of a run."""
    folder = run / "trajectories"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), SCHEMA), folder / f"{name}.parquet", compression="zstd")
    return folder


def tree(step=7, **changed):
    """The rows of one episode of three trajectories: a solver, a critic that branched off it, and a second one beside that."""
    begun = {
        0: {"role": "solver", "why": "first", "parent": None, "shared": 0},
        1: {"role": "critic", "why": "other_role", "parent": 0, "shared": 6, "trained": False},
        2: {"role": "solver", "why": "parallel", "parent": 0, "shared": 4},
    }
    common = {"role_rewards": [("critic", 0.25)], "task_id": "of-three", "reward": 1.0, **changed}
    return [row(step, turns=1 + part, part=part, parts=3, **fields, **common) for part, fields in begun.items()]
