"""Draws docs/images/molecule.png: alanine dipeptide by simulation and by the model that comes with knotflow.

python docs/pictures/molecule.py runs/quickstart/data.h5 docs/images/molecule.png
"""

import sys
from typing import Any

import h5py
import matplotlib
import mdtraj
import numpy as np
import torch
from matplotlib import pyplot as plt

import knotflow as kf
from knotflow.energies import OpenMMEnergy
from knotflow.molecules import ala2

matplotlib.use("Agg")
SAMPLES = 100_000
HIGHEST = 8.0
"""Free energies above this, in kT, are left blank."""
EDGES = np.linspace(-180, 180, 61)
CENTRES = (EDGES[1:] + EDGES[:-1]) / 2
COLOURS = {"simulation": "#444444", "flow": "#3f51b5"}


def torsions(frames: mdtraj.Trajectory) -> tuple[Any, Any]:
    """Phi and psi of each frame, in degrees."""
    return tuple(np.degrees(f(frames)[1][:, 0]) for f in (mdtraj.compute_phi, mdtraj.compute_psi))


def surface(phi: Any, psi: Any, weights: Any) -> Any:
    """The free energy over (phi, psi) in kT, zero at its lowest bin."""
    mass, _, _ = np.histogram2d(phi, psi, (EDGES, EDGES), weights=weights)
    with np.errstate(divide="ignore"):
        free = -np.log(mass / mass.max())
    return np.ma.masked_greater(np.ma.masked_invalid(free), HIGHEST)


def profile(phi: Any, weights: Any, groups: Any, seed: int = 0) -> tuple[Any, Any]:
    """The free energy along phi, and its standard error by the bootstrap over groups of frames."""
    numbers = np.digitize(phi, EDGES[2:-1:2])
    table = np.zeros((groups.max() + 1, len(EDGES) // 2))
    np.add.at(table, (groups, numbers), weights)
    generator = np.random.default_rng(seed)
    counts = generator.multinomial(len(table), np.full(len(table), 1 / len(table)), 400)
    with np.errstate(divide="ignore", invalid="ignore"):
        many = -np.log(counts @ table)
        spread = np.ma.masked_invalid(many - np.ma.masked_invalid(many).min(1, keepdims=True)).std(0)
        free = -np.log(table.sum(0))
    few = (table > 0).sum(0) < 3  # groups that were there: too few for an error bar
    return np.ma.masked_where(few | (spread > 1), free - free.min()), spread


def main(data: str, out: str) -> None:
    """Draws samples, weights them by the force field, and compares them with the simulation."""
    torch.manual_seed(0)
    system = ala2()
    model = kf.BoltzmannGenerator.pretrained("ala2")
    with torch.no_grad(), OpenMMEnergy(system) as field:
        x, log_p = model.sample_and_log_prob(SAMPLES)
        log_w = -field.energy(x) - log_p
    weights = np.exp((log_w - log_w.max()).double().numpy())
    print(f"effective sample size {weights.sum() ** 2 / (weights**2).sum() / SAMPLES:.3f}")

    md = mdtraj.load(data)
    with h5py.File(data) as file:
        replicas = file["replica"][:]
    sets = {
        "simulation": (*torsions(md), np.ones(len(md)), replicas),
        "flow": (*torsions(mdtraj.Trajectory(x.numpy(), md.topology)), weights, np.arange(SAMPLES) % 1000),
    }
    titles = {
        "simulation": f"Simulation\n{len(md):,} frames of parallel tempering",
        "flow": f"Flow\n{SAMPLES:,} independent samples, reweighted",
    }

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    ticks = (-180, -90, 0, 90, 180)
    for axis, (name, (phi, psi, w, _)) in zip(axes, sets.items(), strict=False):
        mesh = axis.pcolormesh(EDGES, EDGES, surface(phi, psi, w).T, cmap="viridis", vmin=0, vmax=HIGHEST)
        axis.set(title=titles[name], xlabel="phi (°)", ylabel="psi (°)", xticks=ticks, yticks=ticks)
        axis.set_aspect("equal")
    figure.colorbar(mesh, ax=axes[1], label="free energy (kT)")
    for name, (phi, _, w, groups) in sets.items():
        free, error = profile(phi, w, groups)
        axes[2].plot(CENTRES[::2] + 3, free, color=COLOURS[name], label=name, lw=1.5)
        axes[2].fill_between(
            CENTRES[::2] + 3, free - 2 * error, free + 2 * error, color=COLOURS[name], alpha=0.25, lw=0
        )
    axes[2].set(
        title="Free energy along phi\n± 2 standard errors", xlabel="phi (°)", ylabel="kT", xticks=ticks
    )
    axes[2].set_ylim(-0.5, HIGHEST)
    axes[2].legend(frameon=False)
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    main(*sys.argv[1:])
