"""What a run measures: metrics, where the time went, totals, summary, bottleneck, warnings."""
