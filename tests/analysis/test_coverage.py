"""Intervals of 1.96 standard errors hold the truth in 95 of 100 cases, also with correlated frames.

The flow is a normal distribution and the target a narrower one, so everything is known. The frames are of
replicas with memory, as in simulations. With fewer replicas than ten, pieces of them take their place.
"""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from knotflow.analysis import free_energy
from knotflow.analysis.measures import efficiency
from knotflow.statistics.estimates import Estimate, blocks, mean
from tests.soak import times

Floats = NDArray[np.float64]

WIDTH = 0.85
"""Standard deviation of the target; that of the flow is 1."""
EDGE = 0.3
"""Between two states of the target, in its standard deviations."""
SAMPLES, LENGTH, MEMORY = 1000, 200, 0.9
REPLICAS = (3, 5, 8, 20)
NARROWER = 1 / WIDTH**2 - 1
SHARE = math.erfc(EDGE / math.sqrt(2)) / 2
"""Of the upper state."""
TRUTH = {
    "log Z": math.log(WIDTH * math.sqrt(2 * math.pi)),
    "log Z, BAR": math.log(WIDTH * math.sqrt(2 * math.pi)),
    "ess": math.sqrt(1 + 2 * NARROWER) / (1 + NARROWER),
    "free energy, samples": math.log((1 - SHARE) / SHARE),
    "free energy, frames": math.log((1 - SHARE) / SHARE),
    "mean": 0.0,
}


def log_weight(x: Floats) -> Floats:
    weight: Floats = -NARROWER * x**2 / 2 + math.log(2 * math.pi) / 2
    return weight


def frames(random: np.random.Generator, replicas: int) -> Floats:
    """Positions of replicas that keep `MEMORY` of their position from frame to frame."""
    x = random.normal(size=(replicas, LENGTH))
    for i in range(1, LENGTH):
        x[:, i] = MEMORY * x[:, i - 1] + math.sqrt(1 - MEMORY**2) * x[:, i]
    return WIDTH * x.ravel()


def estimates(seed: int, replicas: int) -> dict[str, Estimate]:
    random = np.random.default_rng(seed)
    x, data = random.normal(size=SAMPLES), frames(random, replicas)
    replica = np.repeat(np.arange(replicas), LENGTH)
    log_w = log_weight(x)
    return {
        "log Z": free_energy.importance(log_w).estimate(),
        "log Z, BAR": free_energy.bar(log_w, log_weight(data)).estimate(blocks(replica)),
        "ess": efficiency(log_w, seed)["ess"],
        "free energy, samples": free_energy.side_of_samples(x - EDGE * WIDTH, np.exp(log_w), seed=seed),
        "free energy, frames": free_energy.side_of_frames(data - EDGE * WIDTH, replica, seed=seed),
        "mean": mean(data, blocks(replica)),
    }


@pytest.mark.soak
@pytest.mark.parametrize("replicas", REPLICAS)
def test_intervals_hold_the_truth_in_95_of_100_cases(replicas: int) -> None:
    n = times(20)
    found = [estimates(seed, replicas) for seed in range(n)]
    for name, truth in TRUTH.items():
        held = np.mean([abs(one[name].value - truth) < 1.96 * one[name].error for one in found])
        chance = 2 * math.sqrt(0.95 * 0.05 / n)  # as far as n trials can tell
        assert abs(held - 0.95) < 0.02 + chance, f"{name}: {100 * held:.1f} %"
