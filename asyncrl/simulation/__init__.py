"""Pools of engines in simulated time, around the real replay buffer."""
