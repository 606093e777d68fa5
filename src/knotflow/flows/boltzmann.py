"""The Boltzmann generator: a flow over the internal coordinates of a molecule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from knotflow.flows.flow import CHUNK, Flow, in_chunks
from knotflow.flows.gradient import with_gradient
from knotflow.flows.io import load, notes, save
from knotflow.flows.pretrained import pretrained_file
from knotflow.geometry import Chirality, InternalCoordinates, ZMatrix
from knotflow.transforms import Line
from knotflow.transforms.base import check_count


class BoltzmannGenerator(nn.Module):
    r"""A density of the positions of a molecule's atoms, rotations and translations integrated out.

    With the internal coordinates $q(x)$ and a flow with density $p_q$,

    $$\log p(x) = \log p_q(q(x)) + \log\Big|\frac{\partial q}{\partial x}\Big| ,$$

    where every bond enters the determinant as $b^{-2}$ and every angle as $1/\sin\theta$
    (`InternalCoordinates`). It is comparable with a Boltzmann factor $e^{-u(x)}$: the mean of
    $e^{-u}/p$ over samples estimates $Z$. Positions have shape (..., atoms, 3), in nm and in the dtype of
    the flow; forces are in kT/nm.

    Sampling, densities and forces need neither OpenMM nor any other package for molecules.

    Args:
        coordinates: the internal coordinates.
        flow: a flow over them: bonds in nm, angles and torsions in radians, in the order of ``coordinates``.
            A torsion may live on a `Circle` of length 2π, or on a `Line` if it never turns.
        molecule: what `knotflow.molecules.MolecularSystem.plain` gives: it is kept in model files.
    """

    def __init__(self, coordinates: InternalCoordinates, flow: Flow, molecule: Mapping[str, Any]) -> None:
        super().__init__()
        if flow.dim != coordinates.n_coordinates:
            raise ValueError(
                f"a molecule of {coordinates.n_atoms} atoms has {coordinates.n_coordinates} internal "
                f"coordinates, got a flow of {flow.dim}."
            )
        self.coordinates, self.flow, self.molecule = coordinates, flow, dict(molecule)
        torsions = range(coordinates.n_coordinates)[coordinates.torsions]
        self._centres = [
            (domain.low + domain.high) / 2 if i in torsions and isinstance(domain, Line) else None
            for i, domain in enumerate(flow.domains)
        ]
        self.chirality = _chirality(self.molecule)
        """Handedness of the stereocentres; ``chirality.matches(x)`` says which samples have it."""

    @property
    def n_atoms(self) -> int:
        """Number of atoms."""
        return self.coordinates.n_atoms

    @property
    def temperature(self) -> float:
        """In K: what kT is."""
        return float(self.molecule["temperature"])

    def internal(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Coordinates (..., n) of positions as the flow takes them, and $\log|\partial q/\partial x|$."""
        q, ladj = self.coordinates(x)
        return self.unwound(q), ladj

    def unwound(self, q: Tensor) -> Tensor:
        """Coordinates with every torsion that lives on a `Line` within half a turn of the line's middle."""
        if not any(centre is not None for centre in self._centres):
            return q
        turn = 2 * math.pi
        centre = q.new_tensor([centre or 0.0 for centre in self._centres])
        period = q.new_tensor([0.0 if centre is None else turn for centre in self._centres])
        return q - period * torch.round((q - centre) / turn).detach()

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density of positions; in bounded memory where no gradients are wanted."""
        return in_chunks(self._log_prob, x, point_axes=2)

    def log_prob_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Log-density (...) and force $\partial \log p/\partial x$ (..., atoms, 3), differentiable."""
        return with_gradient(self._log_prob, x, self.parameters())

    def energy(self, x: Tensor) -> Tensor:
        r"""Reduced energy $u = -\log p$ of positions."""
        return -self.log_prob(x)

    def force(self, x: Tensor) -> Tensor:
        r"""Force $-\partial u / \partial x$ in kT/nm, shape of ``x``."""
        return in_chunks(lambda part: self.log_prob_and_force(part)[1], x, point_axes=2)

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw n molecules: positions (n, atoms, 3) in nm, in the standard pose of the coordinates."""
        return self.sample_and_log_prob(n, generator=generator)[0]

    @torch.no_grad()
    def sample_and_log_prob(
        self, n: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw n molecules, with their log-densities: (n, atoms, 3) and (n,)."""
        check_count("n", n, 0)
        like = next(self.parameters(), torch.empty(0))
        x, log_prob = like.new_empty(n, self.n_atoms, 3), like.new_empty(n)
        for first in range(0, n, CHUNK):
            part = slice(first, min(first + CHUNK, n))
            q, log_q = self.flow.sample_and_log_prob(part.stop - first, generator=generator)
            x[part], ladj = self.coordinates.inverse(q)
            log_prob[part] = log_q - ladj
        return x, log_prob

    def save(self, path: str | Path, **more: Any) -> None:
        """Write a model file: weights, configuration, z-matrix and molecule in one ``.safetensors``."""
        save(self.flow, path, **{**more, **self.notes()})

    def notes(self) -> dict[str, Any]:
        """What a model file must note besides the flow, for `load` to read it."""
        zmatrix = self.coordinates.zmatrix
        plain = {"frame": list(zmatrix.frame), "rows": [list(row) for row in zmatrix.rows]}
        units = {"length": "nm", "angle": "rad", "energy": "kT"}
        return {"molecule": self.molecule, "zmatrix": plain, "units": units}

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> BoltzmannGenerator:
        """Read a model file of a molecule; nothing is unpickled, and OpenMM is not needed."""
        found = notes(path)
        if "zmatrix" not in found or "molecule" not in found:
            raise ValueError(f"{path} holds a flow without a molecule; read it with knotflow.load.")
        try:
            coordinates = InternalCoordinates(ZMatrix(found["zmatrix"]["frame"], found["zmatrix"]["rows"]))
            return cls(coordinates, load(path), found["molecule"]).to(device)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{path}: what it says of the molecule is damaged: {type(error).__name__} {error}"
            ) from None

    @classmethod
    def pretrained(cls, name: str = "ala2", device: str = "cpu") -> BoltzmannGenerator:
        """A trained model that comes with the package: ``ala2``, alanine dipeptide in water at 300 K."""
        return cls.load(pretrained_file(name), device)

    def _log_prob(self, x: Tensor) -> Tensor:
        q, ladj = self.internal(x)
        return self.flow.log_prob(q) + ladj


def _chirality(molecule: Mapping[str, Any]) -> Chirality:
    """The stereocentres of a molecule that is described as `MolecularSystem.plain` does."""
    try:
        atoms = [
            atom
            for chain in molecule["topology"]["chains"]
            for residue in chain["residues"]
            for atom in residue["atoms"]
        ]
        bonds = molecule["topology"]["bonds"]
        positions = molecule["positions"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"the description of the molecule is damaged: no {error}.") from None
    return Chirality([(i, j) for i, j in bonds], [atom["element"] for atom in atoms], positions)
