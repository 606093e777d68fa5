r"""The force field of an OpenMM ``System`` as one batched torch function.

Internally, positions have the shape ``(3, atoms, frames)``. Frames come last, so that neighbouring numbers in
memory are the same coordinate of different frames, and every operation on atoms or pairs of atoms uses the
full vector width. Pairs are dense, ``(atoms, atoms, frames)``: sums over partners are plain sums over an
axis, without scattering.

Forces of bonded terms come from autograd. Those of pairs are written out, because with Born radii autograd
would keep some thirty arrays of pairs: with $\partial E/\partial R_i$ collected first, the force is one
weighted sum of differences.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Final

import torch
from torch import Tensor

from knotflow.compiled import Compiled, Options
from knotflow.energies.energy import MolecularEnergy
from knotflow.energies.force_terms import BornTerms, ForceTerms, read_terms
from knotflow.molecules.system import MolecularSystem

PAIRS_AT_ONCE: Final = 64_000
"""Pairs of atoms in all frames of a chunk: its arrays then fit into the processor's cache."""

SMALLEST_SQUARE: Final = 1e-8
"""In nm²: smaller squared distances are raised to this, so that their powers do not overflow in float32."""

TINY: Final = 1e-30
"""Keeps square roots of squares differentiable at zero."""

WORTH_COMPILING: Final = 200_000
"""From this many evaluations on, compiled code saves more time than compiling takes."""


Graph = Compiled[[ForceTerms, Tensor], tuple[Tensor, Tensor]]
"""Energies and forces of one chunk of frames."""


@cache
def _threads(n: int) -> ThreadPoolExecutor:
    """Threads that are reused: new ones would have to allocate their memory again."""
    return ThreadPoolExecutor(n, thread_name_prefix="knotflow")


def frames_at_once(n_atoms: int, frames: int | None = None) -> int:
    """The best number of frames to evaluate together on a CPU, given their total number, if known.

    It is a multiple of the vector width. A chunk that is not full costs as much as a full one.
    """
    most = max(16, PAIRS_AT_ONCE // n_atoms**2 // 16 * 16)
    return most if frames is None else min(most, -(-frames // 16) * 16)


class TorchForceField(MolecularEnergy):
    r"""The energy of a molecule in torch: bonds, angles, torsions, charges, dispersion, implicit solvent.

    The terms are those of the OpenMM ``System`` of a `MolecularSystem`: ``HarmonicBondForce``,
    ``HarmonicAngleForce``, ``PeriodicTorsionForce``, ``NonbondedForce`` without cut-off and with its
    exceptions, and ``GBSAOBCForce``:

    $$u(x) = \frac{1}{kT}\Big[\sum \tfrac{k}{2}(b - b_0)^2 + \sum \tfrac{k}{2}(\theta - \theta_0)^2
      + \sum k\,(1 + \cos(n\varphi - \varphi_0))
      + \sum_{i<j} \frac{k_e q_i q_j}{r_{ij}} + 4\epsilon_{ij}\Big(\frac{\sigma_{ij}^{12}}{r_{ij}^{12}}
      - \frac{\sigma_{ij}^6}{r_{ij}^6}\Big) + G_\text{OBC}(x)\Big].$$

    `energy` consists of torch functions only: it can be differentiated twice, vectorised and compiled.
    `energy_and_force` and `force` record no graph, evaluate any number of frames in chunks and use a compiled
    graph. Everything follows the dtype and the device of the positions.

    Args:
        system: The molecule.
        compiled: Whether `energy_and_force` compiles its graph: the first call for each dtype takes tens of
            seconds, later ones are many times as fast.

    Raises:
        ValueError: if the system has an unsupported force, a cut-off, or constraints.
    """

    def __init__(self, system: MolecularSystem, *, compiled: bool = True) -> None:
        self.recipe = partial(TorchForceField, system, compiled=compiled)
        self.n_atoms = system.n_atoms
        self.temperature = system.temperature
        system.need_force_field()
        self._terms = read_terms(system.openmm_system(), system.kT)
        self._graphs: dict[tuple[torch.dtype, torch.device], tuple[Graph, ForceTerms]] = {}
        self._compiled = compiled
        self.chunk = frames_at_once(self.n_atoms)
        """Number of frames that `energy_and_force` evaluates at once."""

    def energy(self, x: Tensor) -> Tensor:
        self.check_positions(x)
        columns = x.reshape(-1, self.n_atoms, 3).permute(2, 1, 0)
        # Not cached: tensors made inside a transform of torch.func cannot be used outside.
        terms = self._terms.to(x)
        return (bonded_energy(terms, columns) + pair_energy(terms, columns)[0]).reshape(x.shape[:-2])

    def expect(self, evaluations: float) -> None:
        if evaluations >= WORTH_COMPILING and not self._compiled:
            self._compiled = True
            self._graphs.clear()

    @property
    def compiled(self) -> bool:
        """Whether `energy_and_force` runs compiled graphs; False once a compilation has failed."""
        return self._compiled and all(graph.compiled for graph, _ in self._graphs.values())

    def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.check_positions(x)
        frames = x.detach().reshape(-1, self.n_atoms, 3)
        energy, force = frames.new_empty(len(frames)), torch.empty_like(frames)
        starts = list(range(0, len(frames), self.chunk))
        if starts and (x.dtype, x.device) not in self._graphs:
            # The first call compiles, which must happen in one thread.
            self._graphs[x.dtype, x.device] = self._new_graph(x.device), self._terms.to(frames)
            self._evaluate(frames, energy, force, starts.pop())
        evaluate = partial(self._evaluate, frames, energy, force)
        threads = torch.get_num_threads() if x.device.type == "cpu" else 1
        if self.compiled and threads > 1 and len(starts) > 1:
            list(_threads(threads).map(evaluate, starts))
        else:
            for start in starts:
                evaluate(start)
        return energy.reshape(x.shape[:-2]), force.reshape(x.shape)

    def _evaluate(self, frames: Tensor, energy: Tensor, force: Tensor, start: int) -> None:
        """Write energies and forces of one chunk of frames into their places."""
        part = frames[start : start + self.chunk]
        n = len(part)
        # All chunks have one shape, for one compiled graph: the last chunk is filled up with its last frame.
        filled = part[torch.arange(self.chunk, device=part.device).clamp_max(n - 1)]
        graph, terms = self._graphs[frames.dtype, frames.device]
        with torch.no_grad():  # set per thread
            u, f = graph(terms, filled.permute(2, 1, 0).contiguous())
        energy[start : start + n] = u[:n]
        force[start : start + n] = f[..., :n].permute(2, 1, 0)

    def _new_graph(self, device: torch.device) -> Graph:
        # On a CPU, chunks run in parallel threads, which scales better than parallel loops inside a chunk. So
        # each chunk uses one thread, and runs without blocking the others.
        options: Options | None = {"cpp.threads": 1, "cpp_wrapper": True} if device.type == "cpu" else None
        return Compiled(energy_and_force, task="the force field", enabled=self._compiled, options=options)


def energy_and_force(terms: ForceTerms, x: Tensor) -> tuple[Tensor, Tensor]:
    """Reduced energies, shape (frames,), and forces of positions, both of shape (3, atoms, frames)."""

    def total(x: Tensor) -> tuple[Tensor, Tensor]:
        u = bonded_energy(terms, x)
        return u.sum(), u

    gradient, (_, bonded) = torch.func.grad_and_value(total, has_aux=True)(x)
    pairs, force = pair_energy(terms, x)
    return bonded + pairs, force - gradient


def bonded_energy(terms: ForceTerms, x: Tensor) -> Tensor:
    """Bonds, angles and torsions: positions of shape (3, atoms, frames) to reduced energies (frames,)."""
    i, j = terms.bonds
    length = ((x[:, i] - x[:, j]).square().sum(0) + TINY).sqrt()
    bonds = terms.bond_constants * (length - terms.bond_lengths).square()

    i, j, k = terms.angles
    a, b = x[:, i] - x[:, j], x[:, k] - x[:, j]
    cross = torch.linalg.cross(a, b, dim=0)
    angle = torch.atan2((cross.square().sum(0) + TINY).sqrt(), (a * b).sum(0))
    angles = terms.angle_constants * (angle - terms.angle_values).square()

    return bonds.sum(0) + angles.sum(0) + _torsion_energy(terms, x)


def _torsion_energy(terms: ForceTerms, x: Tensor) -> Tensor:
    r"""Fourier series by the recurrence of $\cos n\varphi$, $\sin n\varphi$, without computing an angle."""
    i, j, k, l = terms.torsions
    a, b, c = x[:, j] - x[:, i], x[:, k] - x[:, j], x[:, l] - x[:, k]
    m, n = torch.linalg.cross(a, b, dim=0), torch.linalg.cross(b, c, dim=0)
    # |b| sin and cos of the torsion, both times |m| |n|.
    s = (a * n).sum(0) * (b.square().sum(0) + TINY).sqrt()
    t = (m * n).sum(0)
    scale = torch.rsqrt(s * s + t * t + TINY)
    sine, cosine = s * scale, t * scale
    energy = terms.cosines[0].expand_as(cosine)
    p, q = cosine, sine
    for order in range(1, len(terms.cosines)):
        energy = energy + terms.cosines[order] * p + terms.sines[order] * q
        p, q = p * cosine - q * sine, q * cosine + p * sine
    return energy.sum(0)


def pair_energy(terms: ForceTerms, x: Tensor) -> tuple[Tensor, Tensor]:
    r"""Coulomb, Lennard-Jones and solvent: reduced energies (frames,) and forces (3, atoms, frames).

    With $w_{ij} = -r_{ij}^{-1}\,\partial E/\partial r_{ij}$ the force is $F_i = \sum_j w_{ij}\,(x_i - x_j)$.
    """
    difference = x[:, :, None] - x[:, None]
    # The diagonal gets the distance one; all its factors are zero.
    square = difference.square().sum(0).clamp_min(SMALLEST_SQUARE) * (1 - terms.diagonal) + terms.diagonal
    inverse = torch.rsqrt(square)
    inverse2 = inverse * inverse
    inverse6 = inverse2 * inverse2 * inverse2
    coulomb = terms.coulomb * inverse
    repulsion = terms.repulsion * inverse6
    pairs = coulomb + (repulsion - terms.attraction) * inverse6
    weights = (coulomb + (12 * repulsion - 6 * terms.attraction) * inverse6) * inverse2
    # One axis and one component at a time: the compiler then fuses everything into one loop.
    energy = pairs.sum(1).sum(0) / 2
    if terms.born is not None:
        solvent, solvent_weights = _solvent(terms.born, terms.diagonal, square, inverse)
        energy, weights = energy + solvent, weights + solvent_weights
    return energy, torch.stack([(weights * component).sum(1) for component in difference])


def _solvent(born: BornTerms, diagonal: Tensor, square: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    r"""Generalised Born and surface energy, and their contribution to the weights of `pair_energy`.

    $G = \sum_{i<j} c_{ij} f_{ij}^{-1} + \sum_i \tfrac12 c_{ii} R_i^{-1} + s_i R_i^{-6}$ with
    $f^2 = r^2 + R_i R_j e^{-r^2 / 4 R_i R_j}$ (Still et al. 1990) and the Born radii $R$ of `_born_radii`.
    """
    overlaps, slopes = _overlaps(born, diagonal, square, inverse)
    radius, radius_slope = _born_radii(born, overlaps)
    inverse_radius = 1 / radius
    own = born.self_product * inverse_radius
    surface = born.surface * inverse_radius**6

    decay = torch.exp(-0.25 * square * inverse_radius[:, None] * inverse_radius)
    inverse_f = torch.rsqrt(square + radius[:, None] * radius * decay)
    pairs = born.product * inverse_f
    cubed = pairs * inverse_f * inverse_f
    energy = (pairs.sum(1) / 2 + own + surface).sum(0)

    by_radius = (0.5 * cubed * decay * (radius + 0.25 * square * inverse_radius[:, None])).sum(1)
    by_overlap = -(by_radius + (own + 6 * surface) * inverse_radius) * radius_slope
    chain = by_overlap[:, None] * slopes
    return energy, cubed * (1 - 0.25 * decay) - chain - chain.transpose(0, 1)


def _overlaps(born: BornTerms, diagonal: Tensor, square: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    r"""The integral over the part of atom j outside atom i (Hawkins, Cramer, Truhlar 1996), for all pairs.

    With size $\rho$ of i, reach $s$ of j, $L = \max(\rho, |r - s|)$, $U = r + s$, if $\rho < U$:

    $$H = \frac1L - \frac1U + \frac14\Big(r - \frac{s^2}{r}\Big)\Big(\frac1{U^2} - \frac1{L^2}\Big)
      + \frac1{2r}\log\frac LU + 2\Big(\frac1\rho - \frac1L\Big)\,[\rho < s - r].$$

    Returns:
        The sums of $H$ over j, shape (atoms, frames), and $r^{-1}\,\mathrm d H/\mathrm d r$ of each pair.
    """
    size, reach = born.size[:, None], born.reach
    r = square * inverse
    gap = r - reach
    far = gap.abs()
    lower, upper = torch.maximum(size, far), r + reach
    both = 1 / (lower * upper)
    l, u = both * upper, both * lower
    width = r - reach * reach * inverse
    squares = 0.25 * (u + l) * (u - l)
    logarithm = 0.5 * inverse * torch.log(lower * u)
    engulfed = size < -gap
    present = torch.where(size < upper, 1 - diagonal, 0.0)

    value = (
        l - u + width * squares + logarithm + torch.where(engulfed, 2 * (born.inverse_size[:, None] - l), 0.0)
    )
    lower_slope = torch.where(far > size, torch.where(gap > 0, 1.0, -1.0).to(r.dtype), 0.0)
    l_slope = -l * l * lower_slope
    slope = (
        torch.where(engulfed, -l_slope, l_slope)
        + u * u
        + squares * (1 + reach * reach * inverse * inverse)
        - 0.5 * width * (u * u * u + l * l_slope)
        + inverse * (0.5 * (lower_slope * l - u) - logarithm)
    )
    return (value * present).sum(1), slope * present * inverse


def _born_radii(born: BornTerms, overlaps: Tensor) -> tuple[Tensor, Tensor]:
    r"""Born radii (Onufriev, Bashford, Case 2004, model II) and their derivatives with respect to overlaps.

    $1/R = 1/\rho - \tanh(\Psi - 0.8\Psi^2 + 4.85\Psi^3)/r$ with $\Psi = \tfrac12\rho\sum_j H_{ij}$.
    """
    psi = 0.5 * born.size * overlaps
    tanh = torch.tanh(psi * (1 + psi * (-0.8 + 4.85 * psi)))
    radius = 1 / (born.inverse_size - tanh * born.inverse_radius)
    slope = radius.square() * born.inverse_radius * (1 - tanh * tanh) * (1 + psi * (-1.6 + 14.55 * psi))
    return radius, 0.5 * born.size * slope
