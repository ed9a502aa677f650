"""What holds for all tests."""

from hypothesis import settings

# No test is about time: on a machine with other work an example may take any number of milliseconds.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
