"""Settings that all tests share."""

from hypothesis import settings

# No deadline: how long an example takes says more about the machine's other work than about the code.
settings.register_profile("splash", deadline=None, print_blob=True)
settings.load_profile("splash")
