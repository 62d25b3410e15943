"""Medians, quartiles, and ratios of figures taken in the same round, with a bootstrap interval."""

import random
import statistics


def spread(values: list[float]) -> tuple[float, float]:
    """First and third quartile; the extremes if there are fewer than four values."""
    if len(values) < 4:
        return min(values), max(values)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def paired_ratio(
    ours: list[float | None], peer: list[float | None], resamples: int = 2000, confidence: float = 0.95
) -> dict | None:
    """Median over the rounds of peer / ours (above 1: ours is better) and its bootstrap interval.

    A pair is the figures of one round; a round in which either has none is left out."""
    ratios = [p / o for o, p in zip(ours, peer) if o and p is not None]
    if not ratios:
        return None
    rng = random.Random(1)  # the same interval for the same figures
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(resamples))
    tail = (1 - confidence) / 2
    low, high = medians[int(tail * resamples)], medians[int((1 - tail) * resamples) - 1]
    return {"ratio": statistics.median(ratios), "ci": [low, high], "pairs": len(ratios)}
