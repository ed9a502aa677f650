"""asyncrl: asynchronous off-policy reinforcement learning for language models that act over many turns and call tools.

Importing this package is cheap: it pulls in no torch, no ray and no vllm.
"""

__version__ = "0.1.0"
