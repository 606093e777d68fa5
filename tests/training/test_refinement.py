"""Refinement with the energy: it improves a model, stops by itself, resumes, and is done once."""

import functools
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from knotflow.dynamics.masses import Masses
from knotflow.energies import TorchForceField
from knotflow.files import read_json
from knotflow.flows import load
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.log_file import read_log
from knotflow.molecules import MolecularSystem
from knotflow.training import Batch, cycles, molecules, refinement
from knotflow.training.data import select
from knotflow.training.module import FlowModule
from knotflow.training.molecules import MoleculeTraining, train_generator
from knotflow.workflows.training import noted_training
from tests.analysis.generators import chain_data
from tests.training.stopping import StopError

CHOICE = MoleculeTraining(preset="quick", forces=True, epochs=4.0, batch_size=60, bins=4, learning_rate=0.005)
REFINED = CHOICE.model_copy(update={"refine": True})


def field(system: MolecularSystem) -> TorchForceField:
    return TorchForceField(system, compiled=False)


def weights(model: BoltzmannGenerator) -> list[Tensor]:
    return [parameter.detach() for parameter in model.flow.parameters()]


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Few samples, and two cycles that are done whatever comes of them, for speed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(molecules, "MONITORED", 100)
        patch.setattr(cycles, "CYCLES", 2)
        patch.setattr(refinement, "GAIN", -1e9)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chain_data(tmp_path_factory.mktemp("data") / "chain.h5", 400)


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not refined."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    train_generator(data, folder, CHOICE, energy=field)
    return folder


@pytest.fixture(scope="module")
def refined(data: Path, trained: Path) -> tuple[Path, BoltzmannGenerator]:
    """The same run, refined when asked later."""
    folder = Path(shutil.copytree(trained, trained.with_name("refined")))
    return folder, train_generator(data, folder, REFINED, energy=field)


def test_it_improves_the_weights_and_says_so(trained: Path, refined: tuple[Path, BoltzmannGenerator]) -> None:
    folder, model = refined
    assert not (trained / "refinement").exists() and "refinement" not in notes(trained / "model.safetensors")
    found, before = (notes(path / "model.safetensors") for path in (folder, trained))
    assert MoleculeTraining.parse(found["choice"]) == REFINED
    assert {key: found[key] for key in before if key not in ("choice", "seconds")} == {
        key: before[key] for key in before if key not in ("choice", "seconds")
    }
    history = found["refinement"]
    assert [cycle["steps"] for cycle in history] == [12, 24]  # of 24 steps of the training
    start = read_json(folder / "refinement" / "start.json")
    assert max(cycle["ess"] for cycle in history) > start["ess"] + 0.05
    assert found["seconds"] == pytest.approx(before["seconds"] + sum(cycle["seconds"] for cycle in history))
    loaded = BoltzmannGenerator.load(folder / "model.safetensors")
    assert all(map(torch.equal, weights(loaded), weights(model)))
    # The best of its flows.
    best = 1 + max(range(2), key=lambda number: history[number]["ess_trimmed"])
    kept = BoltzmannGenerator.load(folder / "model.safetensors").flow.state_dict()
    of_cycle = load(folder / "refinement" / f"cycle-{best}" / "model.safetensors").state_dict()
    assert kept.keys() == of_cycle.keys() and all(torch.equal(kept[key], of_cycle[key]) for key in kept)


def test_fewer_frames_than_a_batch_at_the_target(data: Path, trained: Path, tmp_path: Path) -> None:
    """Of many temperatures, few frames may be of the lowest one."""
    ready, model = molecules.prepare(data, CHOICE), BoltzmannGenerator.load(trained / "model.safetensors")
    few = select(ready.train, torch.arange(20))
    assert len(few.x) < ready.training.batch_size
    masses = Masses.molecule(ready.system.masses, ready.system.temperature)
    expected: list[float] = []
    with field(ready.system) as energy:
        energy.expect = expected.append  # type: ignore[method-assign]
        flow, history = refinement.refine(
            model, few, ready.training, tmp_path, energy=energy, masses=masses, metric=ready.metric, first=4
        )
    assert [cycle["steps"] for cycle in history] == [4, 8]
    assert expected == [pytest.approx(12 * refinement.EVALUATIONS * ready.training.batch_size)]
    assert flow.dim == model.flow.dim and all(0 < cycle["ess"] <= 1 for cycle in history)


def test_what_is_left_in_the_folder(refined: tuple[Path, BoltzmannGenerator]) -> None:
    """Rows take much space; they are removed at the end."""
    folder = refined[0] / "refinement"
    assert {path.name for path in folder.iterdir()} == {"start.json", "cycle-1", "cycle-2"}
    for number, steps in ((1, 12), (2, 24)):
        log = read_log(folder / f"cycle-{number}" / "log.csv")
        names = {name for _, name, _ in log}
        assert names >= {
            "nll",
            "force_matching",
            "energy_matching",
            "validation_nll",
            "validation_force_matching",
        }
        every = 12 // refinement.ROUNDS
        for name in ("own_ess", "own_ess_clipped"):
            assert [step for step, other, _ in log if other == name] == list(range(1, steps + 1, every))


def test_a_finished_refinement_is_loaded(
    data: Path, refined: tuple[Path, BoltzmannGenerator], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FlowModule, "training_step", None)  # a step would fail
    monkeypatch.setattr(molecules, "refine", None)
    before = (refined[0] / "model.safetensors").read_bytes()
    for choice in (REFINED, CHOICE):
        again = train_generator(data, refined[0], choice, energy=field)
        assert all(map(torch.equal, weights(again), weights(refined[1])))
    assert (refined[0] / "model.safetensors").read_bytes() == before


def stopping_at(number: int, patch: pytest.MonkeyPatch) -> None:
    """The step of that number, counted over all cycles, is the last."""
    original, count = FlowModule.training_step, [0]

    def step(self: FlowModule, batch: Batch, batch_idx: int) -> None:
        original(self, batch, batch_idx)
        count[0] += 1
        if count[0] == number:
            raise StopError

    patch.setattr(FlowModule, "training_step", step)


@pytest.mark.parametrize("moment", [1, 7, 12, 26, "measured", "drawn", "saved"])
def test_an_interrupted_refinement_ends_with_the_same_weights(
    moment: int | str,
    data: Path,
    trained: Path,
    refined: tuple[Path, BoltzmannGenerator],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In both cycles; between them; while points are drawn; and before the end is written."""
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    before = (folder / "model.safetensors").read_bytes()

    def stop(*_: object, **__: object) -> None:
        raise StopError

    with monkeypatch.context() as patch:
        if isinstance(moment, int):
            stopping_at(moment, patch)
        elif moment == "measured":
            original = refinement._measured

            def measured(replay: object, flow: object, path: Path, seed: int) -> dict[str, float]:
                return stop() if path.parent.name == "cycle-1" else original(replay, flow, path, seed)

            patch.setattr(refinement, "_measured", measured)
        elif moment == "drawn":
            patch.setattr(refinement.Replay, "_resampled", stop)
        else:
            patch.setattr(BoltzmannGenerator, "save", stop)
        with pytest.raises(StopError):
            train_generator(data, folder, REFINED, energy=field)
    assert (folder / "model.safetensors").read_bytes() == before, "the model before can be used meanwhile"
    torch.manual_seed(99)
    resumed = train_generator(data, folder, REFINED, energy=field)
    assert all(map(torch.equal, weights(resumed), weights(refined[1])))
    found, expected = (notes(path / "model.safetensors")["refinement"] for path in (folder, refined[0]))
    for cycle in (*found, *expected):
        del cycle["seconds"]
    assert found == expected
    assert not (folder / "refinement" / "replay").exists()
    for number in (1, 2):
        logs = (path / "refinement" / f"cycle-{number}" / "log.csv" for path in (folder, refined[0]))
        assert len({tuple(read_log(log)) for log in logs}) == 1


def faked(figures: list[float], patch: pytest.MonkeyPatch) -> None:
    """Cycles without training, after which the trimmed effective sample size is as given."""
    values = iter(figures)
    patch.setattr(refinement, "_measured", lambda *_: {"ess": 0.1, "ess_trimmed": next(values)})
    patch.setattr(refinement, "notes", lambda _: {"seconds": 1.0})

    def fit(flow: torch.nn.Module, *_: object, **__: object) -> torch.nn.Module:
        with torch.no_grad():
            for parameter in flow.parameters():
                parameter += 1.0  # in place, as `fit` does
        return flow

    patch.setattr(refinement, "fit", fit)


@pytest.mark.parametrize(
    ("figures", "count", "best"),
    [
        ([0.5, 0.9, 0.99, 0.995, 0.999], 4, 4),  # the largest number of cycles
        ([0.5, 0.9, 0.901], 2, 2),  # hardly better: the last one
        ([0.5, 0.9, 0.8], 2, 1),  # worse: not used
        ([0.5, 0.4], 1, 0),
        ([1e-9, 0.0], 1, 0),
        ([0.0, 0.3, 0.3], 2, 2),
    ],
)
def test_it_stops_by_itself_and_keeps_the_best(
    figures: list[float],
    count: int,
    best: int,
    data: Path,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    start = BoltzmannGenerator.load(folder / "model.safetensors")
    faked(figures, monkeypatch)
    monkeypatch.setattr(cycles, "CYCLES", 4)
    monkeypatch.setattr(refinement, "GAIN", 0.1)
    model = train_generator(data, folder, REFINED, energy=field)
    for found, before in zip(weights(model), weights(start), strict=True):
        torch.testing.assert_close(found, before + best)
    noted = notes(folder / "model.safetensors")["refinement"]
    assert [cycle["ess_trimmed"] for cycle in noted] == figures[1 : count + 1]
    assert [cycle["steps"] for cycle in noted] == [12 * 2**i for i in range(count)]


def test_progress(data: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cycle is a stage with its steps, and says how good the model was before it."""
    folder, seen = Path(shutil.copytree(trained, tmp_path / "run")), list[tuple]()
    monkeypatch.setattr(cycles, "CYCLES", 1)
    train_generator(data, folder, REFINED, energy=field, progress=lambda *now: seen.append(now))
    told = [now for now in seen if now[0].startswith("refining, cycle 1")]
    assert [now[1] for now in told] == list(range(13))[:: told[1][1] - told[0][1]]
    assert {now[2] for now in told} == {12}
    start = read_json(folder / "refinement" / "start.json")
    assert all(f"ess {100 * start['ess']:.1f} %" in now[3] and " before" in now[3] for now in told)
    assert "nll " in told[-1][3] and "energy_matching" in told[-1][3]
    assert [now for now in seen if now[0] == "training"] == [], "that was finished"


def test_who_is_refined(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the preset best by default, if there is an energy."""
    asked = []

    def refine(generator: BoltzmannGenerator, *_: object, **__: object) -> tuple[object, list[object]]:
        asked.append(1)
        return generator.flow, []

    monkeypatch.setattr(molecules, "refine", refine)
    short = {"epochs": 0.2, "batch_size": 60, "bins": 4}
    run = functools.partial(train_generator, data)
    for number, (choice, energy, expected) in enumerate(
        (
            ({"preset": "best"}, field, True),
            ({"preset": "best"}, None, False),
            ({"preset": "best", "refine": False}, field, False),
            ({"preset": "quick"}, field, False),
            ({"preset": "quick", "refine": True}, field, True),
        )
    ):
        asked.clear()
        run(tmp_path / str(number), MoleculeTraining.parse({**short, **choice}), energy=energy)
        assert bool(asked) == expected


def test_refused_without_an_energy(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"refine needs an energy: give energy=..., or set it to False"):
        train_generator(data, tmp_path / "run", REFINED)
    assert not (tmp_path / "run").exists()


def test_notes_of_version_0_2_can_be_read(trained: Path) -> None:
    """They have own samples in the place of the refinement."""
    found = notes(trained / "model.safetensors")
    del found["choice"]["refine"]
    found["choice"]["own_samples"] = True
    assert noted_training(found) == noted_training(notes(trained / "model.safetensors"))


def test_without_forces_and_with_large_batches(data: Path, tmp_path: Path) -> None:
    """Rounds hold enough points for a batch, also if none of them is a sample of the target."""
    choice = REFINED.model_copy(update={"forces": False, "batch_size": 360, "epochs": 2.0})

    class Cold(TorchForceField):
        def energy_and_force(self, x: Tensor) -> tuple[Tensor, Tensor]:
            u, force = super().energy_and_force(x)
            return torch.where(torch.arange(len(u)) < 400, u, torch.nan), force  # of frames, not of samples

    model = train_generator(data, tmp_path / "run", choice, energy=lambda s: Cold(s, compiled=False))
    assert all(weight.isfinite().all() for weight in weights(model))
    names = {name for _, name, _ in read_log(tmp_path / "run" / "refinement" / "cycle-1" / "log.csv")}
    assert "energy_matching" in names and "force_matching" not in names


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_it_ends_in_time(
    seconds: float, data: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without time there is no cycle; with time for some, they have all of it."""
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    start = BoltzmannGenerator.load(folder / "model.safetensors")
    faked([0.5, 0.9, 0.99], monkeypatch)
    monkeypatch.setattr(refinement, "evaluations_per_second", lambda *_: 1e9)
    monkeypatch.setattr(molecules, "Deadline", lambda until, _: cycles.Deadline(until, 0.1))
    until = time.time() + seconds
    model = train_generator(data, folder, REFINED, energy=field, until=until)
    noted = notes(folder / "model.safetensors")["refinement"]
    assert len(noted) == (2 if seconds else 0)
    if seconds:  # for 300 steps, of which a third are those of the first cycle; then 100 took no time
        assert noted[0]["steps"] == pytest.approx(100, abs=20) and noted[1]["steps"] > 200
    for found, before in zip(weights(model), weights(start), strict=True):
        torch.testing.assert_close(found, before + len(noted))
    assert train_generator(data, folder, REFINED, energy=field, until=0.0).flow.dim == start.flow.dim
