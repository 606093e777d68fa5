"""A flow as an energy of molecules."""

import math

import pytest
import torch

from knotflow.dynamics import FlowEnergy
from knotflow.dynamics.flow_energy import Limits
from tests.dynamics.wrong_flows import bent_chain_generator, boxed_chain_generator, exact_chain


def test_is_minus_the_log_density_and_its_gradient() -> None:
    model = bent_chain_generator()
    energy = FlowEnergy(model)
    x = exact_chain(6).reshape(2, 3, 4, 3)
    u, force = energy.energy_and_force(x)
    assert u.shape == (2, 3) and energy.inside(x).all()
    torch.testing.assert_close(u, -model.log_prob(x))
    torch.testing.assert_close(force, model.force(x))
    moving = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(energy.energy(moving).sum(), moving)
    torch.testing.assert_close(gradient, -force)
    assert energy.temperature == 300.0 and energy.n_atoms == 4


def test_follows_the_dtype_of_positions() -> None:
    energy = FlowEnergy(bent_chain_generator().float())
    u, force = energy.energy_and_force(exact_chain(2))
    assert u.dtype == force.dtype == torch.float64
    assert energy.energy(exact_chain(2).float()).dtype == torch.float32


def test_frames_outside_have_infinite_energy_and_leave_the_others_alone() -> None:
    model = boxed_chain_generator(reach=6.0)
    energy = FlowEnergy(model)
    x = exact_chain(4)
    alone = energy.energy_and_force(x[[0, 2]])
    x[1, 0] += torch.tensor([0.0, 0.3, 0.0])  # the first bond
    x[3, 2, 1] = math.nan
    u, force = energy.energy_and_force(x)
    assert energy.inside(x).tolist() == [True, False, True, False]
    assert u[1] == u[3] == math.inf and force[[1, 3]].isnan().all()
    torch.testing.assert_close((u[[0, 2]], force[[0, 2]]), alone)
    torch.testing.assert_close(energy.energy(x), u)
    with pytest.raises(ValueError, match="interval"):
        model.log_prob(x[1])  # the flow itself refuses what is said to be outside


def test_says_which_coordinate_is_outside() -> None:
    model = boxed_chain_generator(reach=6.0)
    energy, x = FlowEnergy(model), exact_chain(1)[0]
    assert energy.why_outside(x) == ""
    first, second = model.coordinates.zmatrix.frame[:2]
    direction = x[first] - x[second]
    x[first] += 0.3 * direction / direction.norm()
    found = energy.why_outside(x)
    assert found.startswith(f"bond {second}-{first} is 0.4") and " nm, " in found
    assert energy.why_outside(torch.full((4, 3), math.nan, dtype=x.dtype)) == "positions are not finite."


def test_refuses_other_molecules() -> None:
    with pytest.raises(ValueError, match=r"\(\.\.\., 4, 3\)"):
        FlowEnergy(bent_chain_generator()).energy(torch.zeros(3, 3))


def test_those_inside_have_the_same_bits_whoever_leaves() -> None:
    model = boxed_chain_generator(reach=6.0)
    energy = FlowEnergy(model)
    x = exact_chain(4)
    u, force = energy.energy_and_force(x)
    torch.testing.assert_close(u, -model.log_prob(x))
    torch.testing.assert_close(force, model.force(x))
    x[1, 0] += torch.tensor([0.0, 0.3, 0.0])
    x[3, 2, 1] = math.nan
    after, force_after = energy.energy_and_force(x)
    assert after[1] == after[3] == math.inf and force_after[[1, 3]].isnan().all()
    assert torch.equal(after[[0, 2]], u[[0, 2]]) and torch.equal(force_after[[0, 2]], force[[0, 2]])
    gone = energy.energy_and_force(torch.full_like(x, math.nan))
    assert (gone[0] == math.inf).all() and gone[1].isnan().all()


def test_limits_are_made_once_for_each_dtype(monkeypatch) -> None:
    model, made = boxed_chain_generator(reach=6.0), []
    of = Limits.of

    def counted(domains, like, **options) -> Limits:
        made.append(like.dtype)
        return of(domains, like, **options)

    monkeypatch.setattr(Limits, "of", counted)
    energy, x = FlowEnergy(model), exact_chain(3)
    first = energy.energy_and_force(x)
    energy.energy_and_force(x.float())
    assert made == [torch.float64] and energy.inside(x).all()
    model.float()
    assert energy.energy_and_force(x)[0] == pytest.approx(first[0], abs=1e-3)
    assert made == [torch.float64, torch.float32]
