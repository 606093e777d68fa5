"""A small training for the tests; as a script it is killed where its arguments say."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import knotflow as kf
from knotflow import tensor_files
from knotflow.progress import Progress
from knotflow.statistics.weights import systematic
from knotflow.training import Batch, Pool, TrainingConfig, fit
from knotflow.training.module import FlowModule
from knotflow.training.replay import effective_share, trusted

CONFIG = TrainingConfig.parse(
    {
        "steps": 70,
        "batch_size": 32,
        "checkpoint_every": 20,
        "log_every": 10,
        "warm_up": 5,
        "learning_rate": 0.01,
        "own_share": 0.25,
        "seed": 3,
        "loss": {"nll": 1.0, "force_matching": 0.01, "reverse_kl": 0.1, "reverse_kl_samples": 16},
    }
)


def energy(x: torch.Tensor) -> torch.Tensor:
    return x.square().sum(-1)


def own(flow: kf.Flow, first: int, seed: int) -> Pool:
    x, log_prob = flow.sample_and_log_prob(64, generator=torch.Generator().manual_seed(seed))
    log_w = (-energy(x) - log_prob).double().numpy()
    x = x[torch.from_numpy(systematic(trusted(log_w), 64, 0.5))]
    return Pool(Batch(x, force=-2 * x), {"ess": effective_share(log_w), "first": float(first)})


def data(n: int = 200) -> Batch:
    x = 0.2 + 0.6 * torch.rand(n, 2, generator=torch.Generator().manual_seed(0))
    return Batch(x, force=-2 * x)


def flow(seed: int = 0) -> kf.Flow:
    torch.manual_seed(seed)
    return kf.Flow.on(
        [kf.Interval(), kf.Circle()], rounds=1, transform={"bins": 4}, conditioner={"hidden": [8]}
    )


def run(folder: Path, seed: int = 0, progress: Progress | None = None) -> kf.Flow:
    return fit(
        flow(seed),
        data(),
        CONFIG,
        folder,
        validation=Batch(*data(50)[:2]),
        energy=energy,
        own=own,
        progress=progress,
    )


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, moment: str, number: int) -> None:
    """Run until a step, or until the writing of a checkpoint, and die there."""
    if moment == "step":
        original = FlowModule.training_step

        def step(self: FlowModule, batch: Batch, batch_idx: int) -> None:
            original(self, batch, batch_idx)
            if self.step == number:
                die()

        FlowModule.training_step = step  # type: ignore[method-assign]
    else:
        write, written = tensor_files.write_atomically, []

        def half(path: Path, content: bytes) -> None:
            written.extend([path] if path.name == "last.ckpt" else [])
            if len(written) == number:
                path.with_suffix(".part").write_bytes(content[: len(content) // 2])
                die()
            write(path, content)

        tensor_files.write_atomically = half
    run(folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
