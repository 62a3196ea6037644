"""Settings of the whole test run."""

from hypothesis import settings

# The first call of a kernel compiles it, which no deadline of one example allows for.
# Derandomized, so that a landing is red only for what it changed; `--hypothesis-profile=explore` searches on.
settings.register_profile("compiled", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("compiled")
