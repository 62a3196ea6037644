"""Settings of the whole test run."""

from hypothesis import settings

# The first call of a kernel compiles it, which no deadline of one example allows for.
settings.register_profile("compiled", deadline=None)
settings.load_profile("compiled")
