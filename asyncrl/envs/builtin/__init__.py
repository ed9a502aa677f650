"""The built-in environments, the made tasks they come with, and the lessons of the tiny model."""
