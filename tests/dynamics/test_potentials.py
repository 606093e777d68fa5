"""Densities as potentials."""

import math

import pytest
import torch

import knotflow as kf
from knotflow.dynamics import CoordinateEnergy
from knotflow.energies import Mixed, Rings
from tests.dynamics.flows import on_a_ring


@pytest.mark.parametrize("periodic", [False, True])
def test_is_the_energy_and_its_force(periodic: bool) -> None:
    rings = Rings(periodic)
    x = on_a_ring(10, torch.Generator().manual_seed(0))
    u, force = CoordinateEnergy(rings).energy_and_force(x)
    torch.testing.assert_close((u, force), (rings.energy(x), rings.force(x)))


def test_a_flow_over_coordinates_serves_as_well() -> None:
    target = Mixed()
    flow = kf.Flow.on(target.domains, rounds=1, transform={"bins": 4}, conditioner={"hidden": [4]}).double()
    x = target.sample(5, torch.Generator().manual_seed(0)).double()
    u, force = CoordinateEnergy(flow).energy_and_force(x)
    torch.testing.assert_close((u, force), (-flow.log_prob(x), flow.score(x)))


def test_points_outside_have_infinite_energy_and_leave_the_others_alone() -> None:
    flow = kf.Flow.on([kf.Interval(), kf.Circle()], rounds=1, transform={"bins": 4}).double()
    energy = CoordinateEnergy(flow)
    x = torch.tensor([[0.3, 0.2], [1.01, 0.2], [0.6, 7.2], [math.nan, 0.1]], dtype=torch.float64)
    u, force = energy.energy_and_force(x)
    assert u.isfinite().tolist() == [True, False, True, False]
    assert u[1] == u[3] == math.inf and force[[1, 3]].isnan().all()
    within = x.clone()
    within[[1, 3]] = 0.5
    same_u, same_force = energy.energy_and_force(within)
    assert torch.equal(u[[0, 2]], same_u[[0, 2]]) and torch.equal(force[[0, 2]], same_force[[0, 2]])
