"""``asyncrl bench gpu``: what the learner, the log-probability kernel, publications and engines do on a GPU, in six parts.

What always holds: each part runs in a process of its own with a deadline; a part that lacks something, or fails, says so in the
result, and the others run. The first four parts need torch, transformers, megatron-core and msgspec only, so that
``python -m asyncrl.bench.gpu`` works on a bare machine. With ``--small`` everything runs on a CPU too, with tiny shapes: that
shows that the program works, and measures nothing.
"""
