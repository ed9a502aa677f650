"""Programs for other trainers, run by the interpreter of an environment that holds these; they import nothing of ours."""
