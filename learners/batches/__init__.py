"""Batches as tensors: packing, micro-batches, shared prefixes, and readings about their data."""
