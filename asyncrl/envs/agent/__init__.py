"""Environments of kind ``agent``: a program of somebody else's plays the episode, and the policy is its model."""
