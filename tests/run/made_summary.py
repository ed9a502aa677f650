"""The summary of a completed run."""

from asyncrl.core.measures.buffer_statistics import LedgerCounts
from asyncrl.core.measures.time_split import IdleShares
from asyncrl.run.measures.summary import (
    EvaluationEnds,
    RewardEnds,
    StalenessTotals,
    Status,
    Summary,
    TokenTotals,
)

SUMMARY = Summary(
    status=Status.COMPLETED,
    steps=60,
    wall_s=251.5,
    training_s=71.5,
    reward=RewardEnds(0.25, 0.875),
    evaluation=EvaluationEnds(0.41, 0.95),
    staleness=StalenessTotals(1.1, 3, 4),
    tokens=TokenTotals(1_240_000, 1_100_000),
    trajectories_per_s=36.1,
    idle=IdleShares(0.03, 0.22),
    versions_published=60,
    warnings=("the rewards of every group were equal",),
    ledger=LedgerCounts(
        issued=1000, running=10, committed=6, taken=4, trained=960, filtered=12, expired=5, failed=3, reasons={"failed: data": 3}
    ),
)
