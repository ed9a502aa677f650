"""The range that rewards must lie in, so that nothing which is computed from them overflows."""

import math

LARGEST_REWARD = 1e15
"""The largest size of a reward. The critic squares returns in 32-bit floats, which end at 3e38; with a larger reward, advantages
would become 0, infinite or no number without anybody being told."""


def is_reward(value: float) -> bool:
    """Return whether ``value`` is a number, and no larger in size than :data:`LARGEST_REWARD`."""
    return math.isfinite(value) and abs(value) <= LARGEST_REWARD
