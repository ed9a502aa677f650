"""The generator pool: its workers, their successors, weights on their way to them, evaluation."""
