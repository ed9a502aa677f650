"""Judges the code of an answer in a process that never runs it: the answer's own process can only hand over plain data.

The modules of this folder but :mod:`~asyncrl.envs.code_judging.judge` are read inside the sandbox, where there is nothing of
asyncrl but them and nothing but the standard library: they import each other, and nothing else.
"""
