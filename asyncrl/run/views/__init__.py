"""What the terminal shows: the live view, the end, episodes, the buffer, logs."""
