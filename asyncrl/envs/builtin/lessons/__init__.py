"""The lessons of the built-in environments, each in a module of the environment's name."""
