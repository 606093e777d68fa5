"""Several ranks of torchrun: they make the same files as one process, also if some die on the way."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.log_file import read_log
from knotflow.storage import trajectory
from knotflow.storage.samples import read_samples
from tests import ranked
from tests.analysis.generators import ala2_data

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SIMULATE = [
    "simulate",
    "--out",
    "sim.h5",
    "--ns",
    "0.0016",
    "--every",
    "0.02",
    "--equilibration",
    "0.05",
    "-q",
]
TRAIN = [
    "train", "data.h5", "--out", "run", "--preset", "quick", "--forces", "--refine", "--epochs", "2",
    "--batch", "32", "-q",
]  # fmt: skip
EXACT = [
    "exact",
    "ala2",
    "-n",
    "48",
    "--chains",
    "16",
    "--burn-in",
    "1",
    "--every",
    "1",
    "--hmc-steps",
    "2",
    "-q",
]
SAMPLE = ["sample", "ala2", "-n", "330", "--weights", "--out", "samples.h5", "-q"]
EVALUATE = ["evaluate", "ala2", "data.h5", "--samples", "300", "--out", "metrics.json", "-q"]


def torchrun(
    folder: Path, *module: str, options: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Two ranks in a folder."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *options,
    ]
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path} | environment
    return subprocess.run(
        [*command, "-m", *module], cwd=folder, env=settings, capture_output=True, text=True, timeout=600
    )


def commands(folder: Path, *arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    (folder / "commands.json").write_text(json.dumps(arguments))
    return torchrun(folder, "tests.ranked", "commands.json", **options)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of all commands, made by this process."""
    folder = tmp_path_factory.mktemp("alone")
    ala2_data(folder / "data.h5")
    ranked.alone(folder, [SIMULATE, SAMPLE, EXACT, EVALUATE, TRAIN])
    return folder


def assert_same_frames(file: Path, other: Path) -> None:
    found, expected = trajectory.read(file), trajectory.read(other)
    for name in trajectory.COLUMNS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def assert_same_training(folder: Path, other: Path) -> None:
    """Equal but for the order of sums."""
    mine, theirs = ({(step, name): x for step, name, x in read_log(f / "log.csv")} for f in (folder, other))
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        assert value == pytest.approx(theirs[key], rel=1e-3, abs=1e-3), key
    model, expected = (BoltzmannGenerator.load(f / "model.safetensors") for f in (folder, other))
    for weight, reference in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(weight, reference, rtol=0, atol=1e-2)
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in other.iterdir())


def test_two_ranks_make_the_same_files_as_one(alone: Path, tmp_path: Path) -> None:
    (tmp_path / "data.h5").write_bytes((alone / "data.h5").read_bytes())
    ended = commands(tmp_path, SIMULATE, SAMPLE, EXACT, EVALUATE, TRAIN)
    assert ended.returncode == 0, ended.stderr
    for name in ("sim.h5", "exact.h5"):
        assert_same_frames(tmp_path / name, alone / name)
    found, expected = read_samples(tmp_path / "samples.h5"), read_samples(alone / "samples.h5")
    for column in ("positions", "log_prob", "energies", "log_weights"):
        np.testing.assert_array_equal(getattr(found, column), getattr(expected, column), err_msg=column)
    assert found.provenance == expected.provenance
    numbers, reference = (json.loads((f / "metrics.json").read_text()) for f in (tmp_path, alone))
    for part in ("about", "measures", "residues", "states"):
        assert numbers[part] == reference[part]
    assert_same_training(tmp_path / "run", alone / "run")


def test_killed_ranks_are_restarted_and_the_run_goes_on(alone: Path, tmp_path: Path) -> None:
    (tmp_path / "data.h5").write_bytes((alone / "data.h5").read_bytes())
    dice = random.Random()
    deaths = [(dice.randrange(2), round(dice.uniform(0.5, 10), 1)) for _ in range(2)]
    ended = commands(
        tmp_path, SIMULATE, EXACT, TRAIN, options=("--max-restarts", "2"), DEATHS=json.dumps(deaths)
    )
    assert ended.returncode == 0, (deaths, ended.stderr)
    for name in ("sim.h5", "exact.h5"):
        assert_same_frames(tmp_path / name, alone / name)
    assert_same_training(tmp_path / "run", alone / "run")


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_find_each_other_again_after_a_death(tmp_path: Path, rank: int) -> None:
    """torchrun keeps its store, in which ranks that have died were found first."""
    deaths = json.dumps([(rank, 0.3)])
    ended = commands(tmp_path, SAMPLE, options=("--max-restarts", "1"), DEATHS=deaths)
    assert ended.returncode == 0, ended.stderr
    assert "connectFullMesh" not in ended.stderr and len(read_samples(tmp_path / "samples.h5")) == 330


def test_an_error_is_one_sentence_of_one_rank(tmp_path: Path) -> None:
    ended = torchrun(tmp_path, "knotflow", "sample", "nothing", "--out", "a.h5")
    assert ended.returncode != 0
    assert ended.stderr.count("Error: there is no model file nothing") == 1 and not ended.stdout
    codes = re.findall(r"exitcode  : (-?\d+)", ended.stderr)
    # The rank that failed says 2, unless torchrun sees first that the other one lost it, and ends it.
    assert len(codes) == 2 and set(codes) <= {"1", "2", "-15"}
    assert list(tmp_path.iterdir()) == []
