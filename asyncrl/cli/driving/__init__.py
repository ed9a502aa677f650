"""The process that drives a run, an evaluation or a sweep for another one: a program, or a command that goes on without it."""
