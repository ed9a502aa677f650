"""Contracts shared by every layer: trajectories, recipes, versions, deadlines, metrics, errors. No torch, no ray, no vllm."""
