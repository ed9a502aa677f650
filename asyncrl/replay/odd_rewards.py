"""Finds rewards that stand out from all others of a step. Advantages that are divided by a spread hide how far."""

from statistics import median

from asyncrl.core.batch import Batch, SampleName

FAR = 3.0
"""A reward stands out if it is this many times farther from the median than all that do not."""


def odd_rewards(batch: Batch) -> dict[SampleName, float]:
    """Return the rewards of episodes that stand out, by episode; most often none.

    What stands out is at most a quarter of a batch: more of it is no exception. Where all others are equal, it is a single one:
    of two values, neither is odd because it is rarer.
    """
    rewards = {episode.name: episode.reward for episode in batch.trained}
    middle = median(rewards.values())
    far = sorted(rewards, key=lambda name: abs(rewards[name] - middle), reverse=True)
    for count in range(1, len(far) // 4 + 1):
        nearest, next_one = (abs(rewards[far[place]] - middle) for place in (count - 1, count))
        if nearest > FAR * next_one and (next_one or count == 1):
            return {name: rewards[name] for name in far[:count]}
    return {}
