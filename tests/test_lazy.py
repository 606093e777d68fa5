"""Names that are imported when first used: all there, and nothing heavy before."""

import importlib
import subprocess
import sys

import pytest

import knotflow as kf
from knotflow import molecules


@pytest.mark.parametrize(
    "package",
    [
        "knotflow",
        "knotflow.dynamics",
        "knotflow.energies",
        "knotflow.molecules",
        "knotflow.simulation",
        "knotflow.training",
    ],
)
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in dir(module)


def test_names_are_those_of_their_homes() -> None:
    from knotflow.flows import Flow
    from knotflow.molecules.system import ala2
    from knotflow.transforms import BSpline

    assert kf.Flow is Flow and kf.BSpline is BSpline and molecules.ala2 is ala2
    assert kf.molecules is molecules


def test_unknown_names_are_refused_as_usual() -> None:
    with pytest.raises(AttributeError, match="module 'knotflow' has no attribute 'Spline'"):
        _ = kf.Spline


@pytest.mark.parametrize("module", ["knotflow.cli", "knotflow.simulation.tasks", "knotflow.workers"])
def test_commands_and_workers_start_without_torch(module: str) -> None:
    heavy = {"torch", "openmm", "mdtraj", "lightning"}
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
