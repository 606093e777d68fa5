"""The first training step of a new process.

The process imports knotflow, builds the preset ``paper`` and a batch, and then takes one step of likelihood
and forces. Nothing may be kept from earlier processes: the compile cache of PyTorch is an empty folder, and
whether something was compiled into it is reported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any


def measure(threads: int, batch: int) -> dict[str, Any]:
    """Seconds of import, of making model and batch, and of the first step; whether anything was compiled."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.first_step", str(threads), str(batch)]
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
        compiled = any(path.is_file() for path in Path(folder).rglob("*"))
    return {**json.loads(done.stdout), "compiled": compiled}


def take(threads: int, batch: int) -> dict[str, float]:
    """The seconds, in this process."""
    times = [time.perf_counter()]
    import torch

    from benchmarks.flow import FORCE_STEP, training
    from benchmarks.models import frames, paper_generator, paper_loss, scores
    from knotflow.molecules import ala2

    times.append(time.perf_counter())
    torch.set_num_threads(threads)
    data, model = frames(ala2(), "paper", batch, seed=0), paper_generator(seed=0)
    step = training(model.flow, paper_loss(model, FORCE_STEP), data.x, scores(data))
    times.append(time.perf_counter())
    step()
    times.append(time.perf_counter())
    names = ("import_s", "build_s", "first_step_s")
    return dict(zip(names, (b - a for a, b in pairwise(times)), strict=True))


if __name__ == "__main__":
    print(json.dumps(take(*map(int, sys.argv[1:]))))
