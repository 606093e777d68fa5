"""The Boltzmann generator: a flow over the internal coordinates of a molecule."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from knotflow.flows.flow import CHUNK, Flow, in_chunks, like
from knotflow.flows.gradient import with_gradient
from knotflow.flows.io import load, notes, save
from knotflow.flows.pretrained import pretrained_file
from knotflow.flows.temperature import SAME, TemperatureRange
from knotflow.geometry import Chirality, InternalCoordinates, ZMatrix
from knotflow.transforms import Domain, Line


class BoltzmannGenerator(nn.Module):
    r"""A density of the atom positions of a molecule, with rotations and translations integrated out.

    With the internal coordinates $q(x)$ and a flow with density $p_q$,

    $$\log p(x) = \log p_q(q(x)) + \log\Big|\frac{\partial q}{\partial x}\Big| ,$$

    where every bond enters the determinant as $b^{-2}$ and every angle as $1/\sin\theta$
    (`InternalCoordinates`). It is comparable with a Boltzmann factor $e^{-u(x)}$: the mean of
    $e^{-u}/p$ over samples estimates $Z$. Positions have shape (..., atoms, 3), in nm and in the dtype of
    the flow; forces are in kT/nm. Sampling, densities and forces need neither OpenMM nor any other
    molecular package.

    Args:
        coordinates: the internal coordinates.
        flow: a flow over them, in the order of ``coordinates``: bonds in nm, angles and torsions in radians.
            A torsion lives on a `Circle` of length 2π, or on a `Line` if it never turns over.
        molecule: the result of `knotflow.molecules.MolecularSystem.plain`, which model files store.
        temperatures: for a flow that knows many temperatures: their range, see `TemperatureRange`. The
            generator is then that of the molecule's temperature, and `at` gives those of others.
    """

    def __init__(
        self,
        coordinates: InternalCoordinates,
        flow: Flow,
        molecule: Mapping[str, Any],
        temperatures: TemperatureRange | None = None,
    ) -> None:
        super().__init__()
        if flow.dim != coordinates.n_coordinates:
            raise ValueError(
                f"a molecule of {coordinates.n_atoms} atoms has {coordinates.n_coordinates} internal "
                f"coordinates, got a flow of {flow.dim}."
            )
        self.coordinates, self.molecule, self.temperatures = coordinates, dict(molecule), temperatures
        # In a tuple, so that its weights are not counted among those of this generator.
        self._conditional = None if temperatures is None else (flow,)
        self.flow = flow if temperatures is None else temperatures.at(flow, self.temperature)
        self._centres = line_centres(coordinates, flow.domains)
        self.chirality = _chirality(self.molecule)
        """Handedness of the stereocentres; ``chirality.matches(x)`` tells which samples have it."""

    @property
    def n_atoms(self) -> int:
        """Number of atoms."""
        return self.coordinates.n_atoms

    @property
    def temperature(self) -> float:
        """Temperature in K, which defines kT."""
        return float(self.molecule["temperature"])

    def at(self, temperature: float) -> BoltzmannGenerator:
        """The generator of another temperature in K: an ordinary one, which can be saved and used as any.

        Raises:
            ValueError: if the model does not know this temperature.
        """
        if self._conditional is None or self.temperatures is None:
            if abs(temperature - self.temperature) <= SAME:
                return self
            raise ValueError(
                f"this model knows only {self.temperature:g} K, got {temperature:g} K; a model of many "
                "temperatures comes from `knotflow train DATA --temperatures`."
            )
        flow = self.temperatures.at(self._conditional[0], temperature).to(like(self.flow))
        return BoltzmannGenerator(
            self.coordinates, flow, {**self.molecule, "temperature": float(temperature)}
        )

    def internal(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Coordinates (..., n) of positions, ready for the flow, and $\log|\partial q/\partial x|$."""
        q, ladj = self.coordinates(x)
        return self.unwound(q), ladj

    def unwound(self, q: Tensor) -> Tensor:
        """Coordinates with each torsion on a `Line` moved to within half a turn of the line's middle."""
        return unwound(q, self._centres)

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density of positions; without gradients, in bounded memory."""
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
        q, log_q = self.flow.sample_and_log_prob(n, generator=generator)
        parts = [self.coordinates.inverse(part) for part in q.split(CHUNK)]
        x, ladj = (torch.cat(part) for part in zip(*parts, strict=True))
        return x, log_q - ladj

    def save(self, path: str | Path, **more: Any) -> None:
        """Write a model file: weights, configuration, z-matrix and molecule in one ``.safetensors``."""
        flow = self.flow
        if self._conditional is not None:
            flow = copy.deepcopy(self._conditional[0]).to(like(self.flow))
        save(flow, path, **{**more, **self.notes()})

    def notes(self) -> dict[str, Any]:
        """The notes that a model file needs besides the flow, for `load` to read it."""
        zmatrix = self.coordinates.zmatrix
        plain = {"frame": list(zmatrix.frame), "rows": [list(row) for row in zmatrix.rows]}
        units = {"length": "nm", "angle": "rad", "energy": "kT"}
        found = {"molecule": self.molecule, "zmatrix": plain, "units": units}
        return found if self.temperatures is None else {**found, "temperatures": asdict(self.temperatures)}

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> BoltzmannGenerator:
        """Read the model file of a molecule. Nothing is unpickled, and OpenMM is not needed.

        A model of many temperatures is read at that of its molecule, the lowest; see `at`.
        """
        found = notes(path)
        if "zmatrix" not in found or "molecule" not in found:
            raise ValueError(f"{path} holds a flow without a molecule; read it with knotflow.load.")
        flow = load(path, device)
        try:
            coordinates = InternalCoordinates(ZMatrix(found["zmatrix"]["frame"], found["zmatrix"]["rows"]))
            known = found.get("temperatures")
            temperatures = None if known is None else TemperatureRange(**known)
            return cls(coordinates, flow, found["molecule"], temperatures).to(device)
        except (LookupError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"{path}: the description of the molecule is damaged: {type(error).__name__} {error}"
            ) from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def pretrained(cls, name: str = "ala2", device: str = "cpu") -> BoltzmannGenerator:
        """A trained model that comes with the package: ``ala2``, alanine dipeptide in water at 300 K."""
        return cls.load(pretrained_file(name), device)

    def _log_prob(self, x: Tensor) -> Tensor:
        q, ladj = self.internal(x)
        return self.flow.log_prob(q) + ladj


def line_centres(coordinates: InternalCoordinates, domains: Sequence[Domain]) -> list[float | None]:
    """Middle of the line of each torsion that has one; None for all other coordinates."""
    torsions = range(coordinates.n_coordinates)[coordinates.torsions]
    return [
        (domain.low + domain.high) / 2 if i in torsions and isinstance(domain, Line) else None
        for i, domain in enumerate(domains)
    ]


def unwound(q: Tensor, centres: Sequence[float | None]) -> Tensor:
    """Coordinates (..., n), those with a centre moved by whole turns to within half a turn of it."""
    if not any(centre is not None for centre in centres):
        return q
    turn = 2 * math.pi
    centre = q.new_tensor([centre or 0.0 for centre in centres])
    period = q.new_tensor([0.0 if centre is None else turn for centre in centres])
    return q - period * torch.round((q - centre) / turn).detach()


def _chirality(molecule: Mapping[str, Any]) -> Chirality:
    """The stereocentres of a molecule in the form of `MolecularSystem.plain`."""
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
