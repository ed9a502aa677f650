"""The user's own classes and functions: loading them, and telling where they failed."""
