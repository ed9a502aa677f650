"""The journal of a replay buffer: its files, frames, disk and recovery."""
