"""This process and its host: environment, streams, parent, processor, log lines, long imports."""
