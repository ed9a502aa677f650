"""A pool of engines in simulated time around the real buffer, in which benchmarks compare staleness policies."""
