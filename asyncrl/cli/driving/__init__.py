"""The process that drives a run or an evaluation for another one: a program, or a command that goes on without it."""
