"""The docs, and the programs that write those of their pages that are made from the code."""
