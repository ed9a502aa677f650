"""Runs commands that nobody vouches for: no network, no file outside one folder, bounded time, memory, processes and disk.

:class:`~asyncrl.envs.sandbox.sandbox.Sandbox` is the interface. docs/reference/sandbox.md says what each backend isolates and
what not.
"""
