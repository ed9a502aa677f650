"""Shared prefixes: the leading tokens that rows of a group have in common, which are computed once for all of them.
What the shared prefixes of several groups begin with, such as a system prompt and the schemas of tools, is the preamble,
which is computed once for all these groups.

A shared prefix ends, at the latest, before the last token of the shortest prompt: that token predicts the row's first
sampled token, and stays in the row. So every prediction is made within its own row, and a shared prefix has neither
targets nor a loss of its own.

What always holds: rows share no more than they have in common, also where only some rows of a group share something;
:func:`planned_prefix` needs no payload and never
promises more than :func:`shared_prefix` finds (except after a collision of CRC-32).
"""

from collections.abc import Sequence

import numpy as np

from asyncrl.core.batch import BatchRow
from asyncrl.core.episode_records import TrajectoryRecord, checked_lengths
from asyncrl.core.ids import GroupId
from asyncrl.core.trajectory import Trajectory

_LEAST_PREAMBLE = 16
"""Fewer tokens are not worth a segment of their own."""


def planned_prefix(records: Sequence[TrajectoryRecord]) -> int:
    """How many leading tokens rows can share, according to their records; 0 for a single row.

    It is at least half of what they really share, if that is 128 tokens or more, and all of it if their prompts are
    equal.
    """
    if len(records) < 2:
        return 0
    return max(0, min(_common(records), min(each.prompt_length for each in records) - 1))


def families(rows: Sequence[BatchRow]) -> list[list[int]]:
    """Divide rows into families, each of which shares a beginning, so that most tokens are saved; a row may be alone.

    Only rows of one group are in one family: they share most, and stay in one mini-batch. The families are listed in the order of
    their first rows; what other groups have in common with them is the preamble.
    """
    groups: dict[GroupId, list[int]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(row.group_id, []).append(number)
    divided = [family for numbers in groups.values() for family in _divided(rows, numbers)[0]]
    return sorted(divided, key=lambda family: family[0])


def _divided(rows: Sequence[BatchRow], numbers: list[int], known: int = 0) -> tuple[list[list[int]], int]:
    """Return the families of rows that begin with the same ``known`` tokens, and how many tokens sharing saves."""
    whole = _one_family(rows, numbers)
    known = max(known, _common([rows[number] for number in numbers]))
    alike: dict[tuple[int, int], list[int]] = {}
    for number in numbers:
        further = next((check for check in _checks(rows[number]) if check[0] > known), (0, number))
        alike.setdefault(further, []).append(number)
    if len(alike) == 1 or all(len(members) == 1 for members in alike.values()):
        return whole
    parts = [_divided(rows, members, length) for (length, _), members in alike.items() if len(members) > 1]
    if rest := [number for members in alike.values() if len(members) == 1 for number in members]:
        parts.append(_one_family(rows, rest))
    saved = sum(of_part for _, of_part in parts)
    return ([family for of_part, _ in parts for family in of_part], saved) if saved > whole[1] else whole


def _one_family(rows: Sequence[BatchRow], numbers: list[int]) -> tuple[list[list[int]], int]:
    """Return the rows as one family if they share anything, else each alone, and how many tokens that saves."""
    shared = planned_prefix([rows[number] for number in numbers])
    return ([numbers] if shared else [[number] for number in numbers]), shared * (len(numbers) - 1)


def _checks(record: TrajectoryRecord) -> list[tuple[int, int]]:
    """The lengths of the prompt's beginnings that have a checksum, and these."""
    return list(zip(checked_lengths(record.prompt_length), record.prompt_checksums, strict=False))


def _common(records: Sequence[TrajectoryRecord]) -> int:
    """How many leading tokens the prompts have in common, as far as checksums tell."""
    return max((length for length, _ in set.intersection(*(set(_checks(each)) for each in records))), default=0)


def tokens_before(lengths: Sequence[int], prefixes: Sequence[range], preamble: int) -> list[int]:
    """How many tokens of preamble and shared prefix come before each segment of a micro-batch.

    Args:
        lengths, prefixes, preamble: see :class:`.micro_batch.MicroBatch`.
    """
    before = [0] * len(lengths)
    first = int(preamble > 0)
    for number, rows in enumerate(prefixes, first):
        before[number] = preamble
        for row in rows:
            before[first + len(prefixes) + row] = preamble + lengths[number]
    return before


def shared_prefix(rows: Sequence[Trajectory]) -> int:
    """How many leading tokens rows share, according to their tokens and the experts that these went to."""
    first = rows[0].token_ids
    common = min(row.prompt_length() for row in rows) - 1
    for row in rows[1:]:
        differing = np.flatnonzero(row.token_ids[:common] != first[:common])
        common = int(differing[0]) if len(differing) else common
        common = _routed_alike(row, rows[0], common)
    return max(0, common)


def _routed_alike(row: Trajectory, other: Trajectory, common: int) -> int:
    """How many of the ``common`` leading tokens went to the same experts in both rows; all if experts are not known."""
    if row.experts is None or other.experts is None:
        return common
    differing = np.flatnonzero(row.experts.first(common) != other.experts.first(common))
    return int(differing[0]) // row.experts.token_bytes if len(differing) else common


def shared_preamble(rows: Sequence[Trajectory], lengths: Sequence[int]) -> int:
    """How many leading tokens all shared prefixes have in common, as a preamble that leaves each at least one token of its
    own; 0 if there is just one prefix, or if they are too few to be worth it.

    Args:
        rows: for each prefix, a row that begins with it.
        lengths: the prefixes' lengths.
    """
    if len(rows) < 2:
        return 0
    common = min(lengths) - 1
    first = rows[0].token_ids[:common]
    differing = np.flatnonzero((np.stack([row.token_ids[:common] for row in rows]) != first).any(0))
    common = int(differing[0]) if len(differing) else common
    for row in rows[1:]:
        common = _routed_alike(row, rows[0], common)
    return common if common >= _LEAST_PREAMBLE else 0
