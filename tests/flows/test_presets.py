"""Flows by name: the paper's, to the parameter, and flows fitted to a molecule's data."""

import json
import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import knotflow as kf
from knotflow.flows import FlowConfig, presets
from knotflow.flows.conditioner import SeparateConditioners
from knotflow.flows.presets import fitted_domains, molecular_flow, paper_flow
from knotflow.geometry import InternalCoordinates, ZMatrix, paper_zmatrix
from knotflow.molecules.coordinates import internal_coordinates
from knotflow.transforms import Chain
from tests.molecules.molecules import frames, molecule

PARAMETERS = {"bspline": 380_982, "rq": 285_497, "bump": 314_456}
"""Table 2 of the paper."""


@cache
def paper_coordinates() -> InternalCoordinates:
    return InternalCoordinates(paper_zmatrix())


def chain(n_atoms: int) -> InternalCoordinates:
    """Coordinates of atoms in a row."""
    return InternalCoordinates(ZMatrix((0, 1, 2), [(i, i - 1, i - 2, i - 3) for i in range(3, n_atoms)]))


def made_up(coordinates: InternalCoordinates, n: int = 500, seed: int = 0) -> Tensor:
    """Stiff bonds and angles, torsions all the way round."""
    random = torch.Generator().manual_seed(seed)
    q = torch.randn(n, coordinates.n_coordinates, generator=random)
    q[:, coordinates.bonds] = 0.15 + 0.003 * q[:, coordinates.bonds]
    q[:, coordinates.angles] = 1.9 + 0.05 * q[:, coordinates.angles]
    width = q[:, coordinates.torsions].shape[1]
    q[:, coordinates.torsions] = math.pi * (2 * torch.rand(n, width, generator=random) - 1)
    return q


# --- the paper's ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", PARAMETERS)
def test_parameter_counts_of_the_paper(family: str) -> None:
    flow = paper_flow(paper_coordinates(), family).build()
    assert sum(parameter.numel() for parameter in flow.parameters()) == PARAMETERS[family]


def test_the_count_is_that_of_the_layers_written_down() -> None:
    """Counted by hand: inputs, two layers of 64, outputs, with biases; torsions enter as two numbers."""

    def network(inputs: int, outputs: int) -> int:
        return (inputs + 1) * 64 + 65 * 64 + 65 * outputs

    bins = 32
    circle, interval = 2 * bins, 2 * bins + 6
    halves = 2 * (network(2 * 9, 10 * circle) + network(2 * 10, 9 * circle))
    angles, bonds = network(2 * 19, 20 * interval), network(2 * 19 + 20, 21 * interval)
    assert halves + angles + bonds == PARAMETERS["bspline"]


@pytest.mark.parametrize("family", PARAMETERS)
def test_layers_of_the_paper(family: str) -> None:
    coordinates = paper_coordinates()
    flow = paper_flow(coordinates, family).build()
    bonds, angles, torsions = (
        list(range(60))[part] for part in (coordinates.bonds, coordinates.angles, coordinates.torsions)
    )
    assert [len(part) for part in (bonds, angles, torsions)] == [21, 20, 19]
    assert set(flow.domains[coordinates.bonds]) == {kf.Interval(0.05, 0.3)}
    assert set(flow.domains[coordinates.angles]) == {kf.Interval(0.15 * math.pi, math.pi)}
    assert set(flow.domains[coordinates.torsions]) == {kf.Circle(-math.pi, math.pi)}
    first, second = torsions[:9], torsions[9:]
    # From data to base; sampling goes the other way: torsions first, then angles, then bonds.
    expected = [(bonds, [*angles, *torsions]), (angles, torsions), *[(second, first), (first, second)] * 2]
    assert [(coupling.transformed, coupling.read) for coupling in flow.couplings] == expected
    for coupling in flow.couplings:
        conditioner = coupling.conditioner
        networks = conditioner.parts if isinstance(conditioner, SeparateConditioners) else [conditioner]
        assert len(networks) == (3 if family == "bump" else 1)
        for network in networks:
            assert [layer.out_features for layer in network.layers[:-1]] == [64, 64]
            assert network.activation is torch.sin
            assert network.layers[-1].weight.abs().max() > 0, "PyTorch's initial weights, not zeros"


def test_floors_and_orders_of_the_paper() -> None:
    ours = paper_flow(paper_coordinates()).build().couplings[0].transforms[0]
    theirs = (
        paper_flow(paper_coordinates(), min_width=1e-6, bins=8, order=5).build().couplings[0].transforms[0]
    )
    assert isinstance(ours, kf.BSpline) and isinstance(theirs, kf.BSpline)
    assert (theirs.bins, theirs.order, theirs.phase) == (8, 5, False)
    assert theirs.parametrisation == kf.Paper(1e-6, 1e-6)
    x = torch.linspace(0, 1, 2001, dtype=torch.float64)
    raw = 20 * torch.randn(ours.n_parameters, dtype=torch.float64, generator=torch.manual_seed(0))
    widths = ours.knots(raw)[0].diff()
    # A tenth of an equal share, the two outer knots on either side counted in.
    assert widths[widths > 1e-12].min() >= 0.0999 / (ours.bins + 4)
    # A slope is at least order - 1 times a rise over the whole domain.
    assert ours.forward(x, raw)[1].min() > math.log(0.999 * 3 * 1e-6)
    rq = paper_flow(paper_coordinates(), "rq").build().couplings[0].transforms[0]
    assert isinstance(rq, kf.RationalQuadratic)
    assert rq.min_width == rq.min_height == rq.min_slope == 1e-3
    bump = paper_flow(paper_coordinates(), "bump").build().couplings[0].transforms[0]
    assert isinstance(bump, kf.Bump) and bump.min_slope == 1e-6


def test_the_paper_needs_two_torsions() -> None:
    with pytest.raises(ValueError, match="at least 5 atoms, got 4; use the preset best or quick"):
        paper_flow(chain(4))
    flow = paper_flow(chain(5), "rq", bins=2).build()
    assert flow.log_prob(made_up(chain(5), 10)).isfinite().all()


# --- domains that fit data ------------------------------------------------------------------------------


def test_a_stiff_torsion_at_the_seam_gets_a_line_around_its_circular_mean() -> None:
    """Its plain mean would be near 0, its plain deviation near π."""
    coordinates = chain(5)
    q = made_up(coordinates, 4000)
    wide = math.pi - 0.02 + 0.1 * torch.randn(4000, generator=torch.manual_seed(1))
    first = coordinates.torsions.start
    q[:, first] = torch.remainder(wide + math.pi, 2 * math.pi) - math.pi
    assert abs(float(q[:, first].mean())) < 2.5 and float(q[:, first].std()) > 2.0
    domains = fitted_domains(coordinates, q)
    line = domains[first]
    assert isinstance(line, kf.Line)
    middle = (line.low + line.high) / 2
    assert math.cos(middle - (math.pi - 0.02)) > 1 - 1e-4
    assert line.length / 10 == pytest.approx(0.1, rel=0.05), "the base has the deviation of the data"
    assert domains[first + 1] == kf.Circle(-math.pi, math.pi)


def test_bonds_and_angles_live_on_lines_of_ten_deviations() -> None:
    coordinates = chain(6)
    q = made_up(coordinates, 20_000)
    domains = fitted_domains(coordinates, q)
    for i in range(coordinates.torsions.start):
        mean, deviation = (0.15, 0.003) if i < coordinates.angles.start else (1.9, 0.05)
        assert isinstance(domains[i], kf.Line)
        assert domains[i].low == pytest.approx(mean - 5 * deviation, abs=0.3 * deviation)
        assert domains[i].high == pytest.approx(mean + 5 * deviation, abs=0.3 * deviation)


def test_coordinates_near_their_limits_get_intervals() -> None:
    coordinates = chain(4)
    q = made_up(coordinates, 4000)
    random = torch.manual_seed(2)
    bond, angle = 1, coordinates.angles.start
    q[:, bond] = (0.3 + 0.05 * torch.randn(4000, generator=random)).clamp(0.1, 0.5)  # hardly a bond
    q[:, angle] = math.pi - 0.05 * torch.randn(4000, generator=random).abs()  # a linear group
    domains = fitted_domains(coordinates, q)
    assert domains[bond] == kf.Interval(0.02, 1.0)
    assert domains[angle] == kf.Interval(0.0, math.pi)
    assert isinstance(domains[0], kf.Line) and isinstance(domains[angle + 1], kf.Line)
    flow = molecular_flow(coordinates, q).build()
    assert flow.log_prob(q).isfinite().all()


@pytest.mark.parametrize("spread", [0.02, 0.2, 0.34, 0.36, 0.8, 3.0])
def test_what_turns_and_what_does_not(spread: float) -> None:
    """Told by the circular deviation; wherever on the circle the torsion is."""
    coordinates = chain(4)
    random = torch.Generator().manual_seed(3)
    noise = torch.randn(50_000, generator=random)
    for centre in (-3.1, 0.0, 1.0, 3.1):
        q = made_up(coordinates, 50_000)
        angle = centre + spread * noise
        q[:, -1] = torch.atan2(angle.sin(), angle.cos())
        domain = fitted_domains(coordinates, q)[-1]
        assert isinstance(domain, kf.Line if spread < presets.STIFF else kf.Circle), (spread, centre)


def test_a_rigid_coordinate_still_has_a_domain() -> None:
    coordinates = chain(4)
    q = made_up(coordinates, 100)
    q[:, 0], q[:, -1] = 0.1, 2.0
    domains = fitted_domains(coordinates, q)
    assert isinstance(domains[0], kf.Line) and domains[0].length > 0
    assert isinstance(domains[-1], kf.Line) and domains[-1].low < 2.0 < domains[-1].high


# --- flows that fit molecules -----------------------------------------------------------------------------


@cache
def peptide_data(name: str) -> tuple[InternalCoordinates, Tensor]:
    system = molecule(name)
    coordinates = internal_coordinates(system)
    q, _ = coordinates(frames(system, 100, noise=0.002))
    turning = torch.rand(100, 3, generator=torch.manual_seed(0), dtype=torch.float64)
    q[:, -3:] = math.pi * (2 * turning - 1)
    return coordinates, q


@pytest.mark.parametrize("name", ["ala2", "G", "P"])
@pytest.mark.parametrize("family", PARAMETERS)
def test_every_coordinate_is_transformed_given_others(name: str, family: str) -> None:
    coordinates, q = peptide_data(name)
    config = molecular_flow(coordinates, q, family=family, bins=4, rounds=3, turning_rounds=5, hidden=(8,))
    flow = config.build()
    n = coordinates.n_coordinates
    turning = [i for i, domain in enumerate(flow.domains) if isinstance(domain, kf.Circle)]
    assert len(turning) >= 3
    touched = [i for coupling in flow.couplings for i in coupling.transformed]
    assert all(touched.count(i) == (5 if i in turning else 3) for i in range(n)), "once a round"
    for coupling in flow.couplings:
        assert sorted([*coupling.transformed, *coupling.read]) == list(range(n)), "nothing passes unread"
        own = {isinstance(flow.domains[i], kf.Circle) for i in coupling.transformed}
        assert len(own) == 1, "what is stiff and what turns are not transformed together"
        for i, f in zip(coupling.transformed, coupling.transforms, strict=True):
            if isinstance(flow.domains[i], kf.Line):
                assert isinstance(f, Chain) and isinstance(f.parts[0], kf.Affine)
                assert isinstance(f.parts[1], kf.BSpline) and f.parts[1].bins == 8
            elif family == "bspline":
                assert isinstance(f, kf.BSpline) and f.bins == 4 and f.phase
    again = FlowConfig.parse(json.loads(json.dumps(config.plain())))
    assert again == config and again.build().domains == flow.domains


def test_it_begins_as_independent_normal_and_uniform_coordinates() -> None:
    """Then the density of what is stiff is right to second order before any training."""
    coordinates, q = peptide_data("ala2")
    flow = molecular_flow(coordinates, q, bins=4, hidden=(8,)).build().double()
    x = q.double().clone()
    expected = torch.zeros(len(x), dtype=torch.float64)
    for i, domain in enumerate(flow.domains):
        if isinstance(domain, kf.Circle):
            expected -= math.log(2 * math.pi)
        else:
            middle, deviation = (domain.low + domain.high) / 2, domain.length / 10
            x[:, i] = middle + deviation * torch.randn(len(x), generator=torch.manual_seed(i)).double()
            expected -= 0.5 * ((x[:, i] - middle) / deviation).square() + math.log(deviation)
            expected -= 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(flow.log_prob(x), expected)


def test_any_two_stiff_coordinates_meet() -> None:
    """After enough rounds each is transformed in some coupling that reads the other."""
    coordinates, q = peptide_data("G")
    stiff = sum(not isinstance(d, kf.Circle) for d in fitted_domains(coordinates, q))
    flow = molecular_flow(coordinates, q, rounds=math.ceil(math.log2(stiff)), bins=2, hidden=(4,)).build()
    met = {(i, j) for coupling in flow.couplings for i in coupling.transformed for j in coupling.read}
    n = coordinates.n_coordinates
    assert met == {(i, j) for i in range(n) for j in range(n) if i != j}


@settings(max_examples=30, deadline=None)
@given(atoms=st.integers(3, 9), rounds=st.integers(1, 4), turning=st.integers(0, 7), seed=st.integers(0, 99))
def test_any_molecule_from_three_atoms_on(atoms: int, rounds: int, turning: int, seed: int) -> None:
    coordinates = chain(atoms)
    q = made_up(coordinates, 200, seed)
    for i in range(coordinates.torsions.start + turning, coordinates.n_coordinates):
        q[:, i] = 1.0 + 0.1 * q[:, i] / math.pi
    config = molecular_flow(coordinates, q, rounds=rounds, bins=2, line_bins=2, hidden=(4,))
    assert FlowConfig.parse(config.plain()) == config
    touched = {i for coupling in config.couplings for i in coupling.transformed}
    assert touched == set(range(coordinates.n_coordinates))
    flow = config.build()
    assert sum(isinstance(d, kf.Circle) for d in flow.domains) == min(turning, max(atoms - 3, 0))
    assert flow.log_prob(q).isfinite().all() and flow.sample(5).shape == (5, coordinates.n_coordinates)
