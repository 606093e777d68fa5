"""Laws of Boltzmann generators, tested on a registry of them; their files; and life without OpenMM."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scipy.spatial.transform import Rotation
from torch import Tensor

import knotflow as kf
from knotflow.flows import boltzmann
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.molecules.coordinates import internal_coordinates
from tests.flows.generators import NAMES, TURN, make, positions
from tests.molecules.molecules import molecule

DTYPES = [torch.float32, torch.float64]
TURNS = 2 * math.pi


@pytest.fixture(params=NAMES)
def model(request: pytest.FixtureRequest) -> BoltzmannGenerator:
    return make(request.param)


@pytest.fixture(params=[(name, dtype) for name in NAMES for dtype in DTYPES], ids=str)
def either(request: pytest.FixtureRequest) -> BoltzmannGenerator:
    """In both precisions."""
    return make(*request.param)


def tolerance(model: BoltzmannGenerator, double: float, single: float) -> float:
    return double if next(model.parameters()).dtype == torch.float64 else single


def test_motions_of_the_whole_molecule_change_nothing(either: BoltzmannGenerator) -> None:
    x = positions(either, 20)
    turn = torch.tensor(Rotation.random(20, random_state=1).as_matrix()).to(x)
    shift = torch.tensor(np.random.default_rng(2).normal(size=(20, 1, 3))).to(x)
    moved = x @ turn.mT + shift
    atol = tolerance(either, 1e-9, 0.02)
    torch.testing.assert_close(either.log_prob(moved), either.log_prob(x), atol=atol, rtol=0)
    # The force turns with the molecule.
    scale = either.force(x).abs().max().item()
    torch.testing.assert_close(
        either.force(moved), either.force(x) @ turn.mT, atol=tolerance(either, 1e-9, 2e-4) * scale, rtol=0
    )


def test_there_is_no_net_force_and_no_torque(model: BoltzmannGenerator) -> None:
    x = positions(model, 10)
    force = model.force(x)
    scale = force.abs().max()
    assert force.sum(1).abs().max() < 1e-10 * scale
    assert torch.linalg.cross(x, force).sum(1).abs().max() < 1e-10 * scale


def test_windings_of_torsions_change_nothing(either: BoltzmannGenerator) -> None:
    q, _ = either.internal(positions(either, 20))
    windings = torch.randint(-2, 3, q.shape, generator=torch.Generator().manual_seed(0))
    windings[:, : either.coordinates.torsions.start] = 0
    wound = q + TURNS * windings.to(q)
    x, _ = either.coordinates.inverse(q)
    same, _ = either.coordinates.inverse(wound)
    atol = tolerance(either, 1e-9, 0.02)
    torch.testing.assert_close(either.log_prob(same), either.log_prob(x), atol=atol, rtol=0)
    torch.testing.assert_close(
        either.flow.log_prob(either.unwound(wound)), either.flow.log_prob(q), atol=atol, rtol=0
    )


def test_density_is_that_of_the_jacobian_with_its_rigid_part(model: BoltzmannGenerator) -> None:
    """Oracle: all 3N positions by base point, shift and rotation, differentiated as a whole."""

    def place(everything: Tensor) -> Tensor:
        shift, axis, z = everything.split([3, 3, model.flow.dim])
        x, _ = model.coordinates.inverse(model.flow.inverse(z)[0])
        zero = torch.zeros_like(axis[0])
        generator = torch.stack(
            [zero, -axis[2], axis[1], axis[2], zero, -axis[0], -axis[1], axis[0], zero]
        ).reshape(3, 3)
        return (x @ torch.linalg.matrix_exp(generator).T + shift).flatten()

    z = model.flow.sample_base(3, generator=torch.Generator().manual_seed(4))
    for point in z:
        start = torch.cat((point.new_zeros(6), point))
        jacobian = torch.func.jacrev(place)(start)
        expected = model.flow.base_log_prob(point) - torch.linalg.slogdet(jacobian).logabsdet
        x = place(start).reshape(model.n_atoms, 3)
        torch.testing.assert_close(model.log_prob(x), expected, atol=1e-8, rtol=0)
        log_prob = (
            model.flow.log_prob(model.internal(x)[0]) - model.coordinates.inverse(model.internal(x)[0])[1]
        )
        torch.testing.assert_close(log_prob, expected, atol=1e-8, rtol=0)


def test_force_is_the_derivative_of_the_density(model: BoltzmannGenerator) -> None:
    x, h = positions(model, 3), 1e-6
    force = model.force(x)
    steps = torch.eye(3 * model.n_atoms, dtype=x.dtype).reshape(-1, 1, model.n_atoms, 3) * h
    difference = (model.log_prob(x + steps) - model.log_prob(x - steps)) / (2 * h)
    expected = difference.T.reshape(x.shape)
    torch.testing.assert_close(force, expected, atol=1e-6 * force.abs().max().item(), rtol=0)


def test_single_precision_has_the_same_densities_and_forces(model: BoltzmannGenerator) -> None:
    x = positions(model, 20).float().double()
    log_prob, force = model.log_prob_and_force(x)
    single, single_force = model.float().log_prob_and_force(x.float())
    torch.testing.assert_close(single.double(), log_prob, atol=0.02, rtol=0)
    torch.testing.assert_close(single_force.double(), force, atol=1e-3 * force.abs().max().item(), rtol=0)


def test_samples_carry_their_own_density(either: BoltzmannGenerator) -> None:
    x, log_prob = either.sample_and_log_prob(200, generator=torch.Generator().manual_seed(3))
    assert (
        x.shape == (200, either.n_atoms, 3) and x.dtype == log_prob.dtype == next(either.parameters()).dtype
    )
    # Angles near a straight line lose digits: their density is one over a small sine.
    atol = tolerance(either, 1e-7, 0.1)
    torch.testing.assert_close(either.log_prob(x), log_prob, atol=atol, rtol=0)
    again = either.sample(200, generator=torch.Generator().manual_seed(3))
    assert torch.equal(again, x)


def test_samples_follow_the_density(model: BoltzmannGenerator) -> None:
    """E[g/p] = 1 over samples of p, for any density g that p covers: here one with disturbed weights."""
    n, generator = 5000, torch.Generator().manual_seed(5)
    x, log_prob = model.sample_and_log_prob(n, generator=generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.003 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        ratio = (model.log_prob(x) - log_prob).exp()
    assert 0.01 < ratio.log().std() < 1
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / math.sqrt(n)


def test_a_torsion_on_a_line_goes_on_over_half_a_turn() -> None:
    """A line around 2.9 rad: torsions beyond π come as negative numbers, and go on where they were."""
    system = molecule("ala2")
    coordinates = internal_coordinates(system)
    q, _ = coordinates(torch.tensor(system.positions))
    which = coordinates.torsions.start + 4
    domains = [kf.Line(value - 2.0, value + 2.0) for value in q.tolist()]
    domains[which] = kf.Line(1.4, 4.4)
    flow = kf.Flow.on(domains, rounds=1, transform={"bins": 4}, conditioner={"hidden": [8]}).double()
    model = BoltzmannGenerator(coordinates, flow, system.plain())
    along = q.repeat(50, 1)
    along[:, which] = torch.linspace(2.0, 4.2, 50, dtype=torch.float64)
    x, volume = coordinates.inverse(along)
    assert (coordinates(x)[0][:, which] < 0).any()
    torch.testing.assert_close(model.internal(x)[0][:, which], along[:, which], atol=1e-12, rtol=0)
    torch.testing.assert_close(model.log_prob(x), flow.log_prob(along) - volume, atol=1e-9, rtol=0)


def test_handedness(model: BoltzmannGenerator) -> None:
    x = positions(model, 5)
    assert model.chirality.matches(x).all()
    mirrored = x * x.new_tensor([1, 1, -1])
    centres = len(model.chirality.centres)
    assert centres == (0 if model.molecule["name"] == "G" else 1)
    assert bool(model.chirality.matches(mirrored).any()) == (centres == 0)


def test_properties(model: BoltzmannGenerator) -> None:
    system = molecule(str(model.molecule["name"]))
    assert model.n_atoms == system.n_atoms and model.temperature == 300.0
    x = positions(model, 4)
    torch.testing.assert_close(model.energy(x), -model.log_prob(x))
    log_prob, force = model.log_prob_and_force(x)
    torch.testing.assert_close(log_prob, model.log_prob(x))
    torch.testing.assert_close(force, model.force(x))


def test_any_leading_shape_and_chunks(model: BoltzmannGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    x = positions(model, 12)
    expected, force = model.log_prob(x), model.force(x)
    shaped = x.reshape(3, 2, 2, *x.shape[1:])
    torch.testing.assert_close(model.log_prob(shaped), expected.reshape(3, 2, 2))
    torch.testing.assert_close(model.force(shaped), force.reshape(shaped.shape))
    torch.testing.assert_close(model.log_prob(x[0]), expected[0])
    monkeypatch.setattr(boltzmann, "CHUNK", 5)
    with torch.no_grad():
        torch.testing.assert_close(model.log_prob(x), expected)
        torch.testing.assert_close(model.force(x), force)
    drawn, log_prob = model.sample_and_log_prob(12)
    assert drawn.shape == x.shape
    torch.testing.assert_close(model.log_prob(drawn), log_prob, atol=1e-7, rtol=0)
    assert model.sample(0).shape == (0, model.n_atoms, 3)


def test_vmap_gives_the_same(model: BoltzmannGenerator) -> None:
    x = positions(model, 6)
    torch.testing.assert_close(torch.func.vmap(model.log_prob)(x), model.log_prob(x))
    torch.testing.assert_close(torch.func.vmap(model.force)(x), model.force(x))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_log_prob_is_one_graph(backend: str) -> None:
    model = make("ala2, lines")
    x = positions(model, 6)
    torch._dynamo.reset()
    compiled = torch.compile(model.log_prob, fullgraph=True, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model.log_prob(x))


def test_gradients_reach_every_weight(model: BoltzmannGenerator) -> None:
    log_prob, force = model.log_prob_and_force(positions(model, 64))
    (force.square().mean() * 1e-6 - log_prob.mean()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_a_saved_model_comes_back_bit_for_bit(either: BoltzmannGenerator, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    either.save(path, seconds=3.5)
    back = BoltzmannGenerator.load(path)
    x = positions(either, 10)
    assert torch.equal(back.log_prob(x), either.log_prob(x)) and torch.equal(back.force(x), either.force(x))
    drawn = [model.sample(10, generator=torch.Generator().manual_seed(1)) for model in (back, either)]
    assert torch.equal(*drawn)
    assert back.molecule == either.molecule and back.temperature == either.temperature
    assert back.coordinates.atoms == either.coordinates.atoms
    found = notes(path)
    assert found["seconds"] == 3.5 and found["units"] == {"length": "nm", "angle": "rad", "energy": "kT"}
    # The flow alone can be read as well.
    assert torch.equal(
        kf.load(path).log_prob(either.internal(x)[0]), either.flow.log_prob(either.internal(x)[0])
    )


def test_notes_do_not_replace_the_molecule(tmp_path: Path) -> None:
    model = make("no stereocentre")
    model.save(tmp_path / "model.safetensors", molecule="mine", zmatrix=None)
    assert BoltzmannGenerator.load(tmp_path / "model.safetensors").molecule == model.molecule


def test_files_that_are_no_generators_are_refused(tmp_path: Path) -> None:
    path, model = tmp_path / "model.safetensors", make("no stereocentre")
    with pytest.raises(FileNotFoundError, match="there is no model file"):
        BoltzmannGenerator.load(path)
    kf.save(model.flow, path)
    with pytest.raises(ValueError, match="holds a flow without a molecule"):
        BoltzmannGenerator.load(path)
    model.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged"):
        BoltzmannGenerator.load(path)
    path.write_bytes(b"PK not this")
    with pytest.raises(ValueError, match=r"not a \.safetensors file"):
        BoltzmannGenerator.load(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"molecule": {"temperature": 300.0}}, "description of the molecule is damaged: no 'topology'"),
        ({"molecule": None}, "the description of the molecule is damaged: TypeError"),
        ({"zmatrix": {"frame": [0, 1, 2]}}, "the description of the molecule is damaged: KeyError 'rows'"),
        ({"zmatrix": {"frame": [0, 1, 2], "rows": []}}, "3 atoms has 3 internal coordinates, got a flow of"),
    ],
)
def test_damaged_notes_are_refused(tmp_path: Path, damage: dict, message: str) -> None:
    path = tmp_path / "model.safetensors"
    make("no stereocentre").save(path)
    with safe_open(path, "pt") as file:
        metadata = {key: value for key, value in file.metadata().items() if key != "checksum"}
    changed = {**metadata, "notes": json.dumps({**json.loads(metadata["notes"]), **damage})}
    save_file(load_file(path), path, changed)
    with pytest.raises(ValueError, match=message):
        BoltzmannGenerator.load(path)


def test_a_flow_of_another_size_is_refused() -> None:
    system = molecule("ala2")
    with pytest.raises(ValueError, match="22 atoms has 60 internal coordinates, got a flow of 4"):
        BoltzmannGenerator(internal_coordinates(system), kf.Flow.on([TURN] * 4), system.plain())


def test_mistakes_are_explained() -> None:
    model = make("no stereocentre")
    with pytest.raises(ValueError, match="n must be a whole number of at least 0, got -1"):
        model.sample(-1)
    with pytest.raises(ValueError, match=r"positions must have shape \(\.\.\., 19, 3\)"):
        model.log_prob(torch.zeros(2, 5, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"this flow computes in torch.float64, got points in torch.float32"):
        model.log_prob(positions(model, 2).float())


WITHOUT_OPENMM = """
import sys
sys.modules["openmm"] = None  # as if it were not installed
import torch
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.molecules.system import MolecularSystem
model = BoltzmannGenerator.load(sys.argv[1])
x, log_prob = model.sample_and_log_prob(5, generator=torch.Generator().manual_seed(0))
assert torch.isfinite(model.force(x)).all() and model.chirality.matches(x).shape == (5,)
system = MolecularSystem.parse(model.molecule)
assert system.topology.n_atoms == model.n_atoms and system.kT > 2
print(log_prob.sum().item())
try:
    system.openmm_system()
except ModuleNotFoundError as error:
    print(error)
"""


def test_a_model_file_needs_no_openmm(tmp_path: Path) -> None:
    model = make("ala2, lines")
    model.save(tmp_path / "model.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_OPENMM, str(tmp_path / "model.safetensors")],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    number, sentence = done.stdout.splitlines()
    expected = model.sample_and_log_prob(5, generator=torch.Generator().manual_seed(0))[1].sum().item()
    assert float(number) == pytest.approx(expected, abs=1e-9)
    assert "need openmm, not installed here; run: pip install" in sentence
