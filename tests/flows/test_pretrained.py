"""Models that come with the package."""

import hashlib
import json
import subprocess
import sys

import pytest
import torch

import knotflow as kf
from knotflow.energies import OpenMMEnergy
from knotflow.flows.pretrained import pretrained_file, pretrained_names
from knotflow.molecules import ala2


def test_they_have_names_and_cards() -> None:
    assert pretrained_names() == ["ala2"]
    card = pretrained_file("ala2").with_suffix(".md").read_text()
    assert "1,120,465 parameters" in card
    model = kf.BoltzmannGenerator.pretrained("ala2")
    assert sum(p.numel() for p in model.parameters()) == 1_120_465
    with pytest.raises(ValueError, match=r"models that come with knotflow: ala2; got 'ala3'"):
        kf.BoltzmannGenerator.pretrained("ala3")


def test_samples_are_near_the_boltzmann_distribution() -> None:
    """By OpenMM's energies: an effective sample size of 2,000 samples as the card says, within its noise."""
    model = kf.BoltzmannGenerator.pretrained("ala2")
    x, log_prob = model.sample_and_log_prob(2000, generator=torch.Generator().manual_seed(1))
    with OpenMMEnergy(ala2(), workers=1) as energy:
        u = energy.energy(x.double())
    log_weight = (-u - log_prob.double())[model.chirality.matches(x)]
    weight = (log_weight - log_weight.max()).exp()
    assert weight.sum() ** 2 / weight.square().sum() > 0.9 * 2000


def test_atoms_are_labelled_as_in_simulations() -> None:
    """Exchanged hydrogens of a methyl group would cost thousands of nats."""
    model, x = kf.BoltzmannGenerator.pretrained("ala2"), torch.tensor(ala2().positions).float()
    swapped = x.clone()
    swapped[[2, 3]] = x[[3, 2]]
    assert model.log_prob(x) > 200 > model.log_prob(swapped)


ALONE = """
import json, sys
for name in ("openmm", "mdtraj", "h5py", "tables", "lightning", "matplotlib"):
    sys.modules[name] = None  # as if it were not installed
import torch
import knotflow as kf
model = kf.BoltzmannGenerator.pretrained("ala2")
x, log_prob = model.sample_and_log_prob(10, generator=torch.Generator().manual_seed(0))
print(json.dumps([list(x.shape), bool(log_prob.isfinite().all()), bool(model.force(x).isfinite().all())]))
"""


def test_the_base_install_is_enough() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[10, 22, 3], True, True]


def test_the_file_is_the_one_that_the_card_is_about() -> None:
    """Whoever changes the model must measure anew, and write the card."""
    found = hashlib.sha256(pretrained_file("ala2").read_bytes()).hexdigest()
    assert found in pretrained_file("ala2").with_suffix(".md").read_text()
