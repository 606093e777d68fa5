"""The page of a generator: all parts, the numbers of the evaluation, nothing from outside, gaps named."""

import base64
import json
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from knotflow.analysis import evaluation
from knotflow.analysis.evaluation import evaluate, evaluation_inputs, is_evaluation_of
from knotflow.analysis.frame_table import LABELLED
from knotflow.dynamics import DynamicsConfig, FlowEnergy
from knotflow.dynamics import run as run_dynamics
from knotflow.energies import OpenMMEnergy
from knotflow.files import read_json
from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.flows.io import notes
from knotflow.report import generator_page
from knotflow.report.verdicts import Level
from knotflow.storage import trajectory
from knotflow.workflows.evaluation import evaluate as evaluate_file
from knotflow.workflows.report import (
    Written,
    find_data,
    read_curves,
    write_report,
)
from tests.analysis.generators import ala2_data, ala2_generator, chain, chain_data, chain_generator
from tests.molecules.molecules import molecule
from tests.report.test_page import Reader as PageReader

HEADINGS = (
    "Summary", "Samples in three dimensions", "Ramachandran plots", "Free energy of torsions", "Forces",
    "Energies", "Bonds, nm", "Angles, degrees", "Torsions, degrees", "Learned transforms", "Training",
    "Dynamics", "All numbers", "Torsions of ALA2 in numbers", "Files to save",
)  # fmt: skip


class Reader(PageReader):
    """Also knows the elements of forms, and what the links give."""

    VOID = (*PageReader.VOID, "input")

    @property
    def downloads(self) -> dict[str, bytes]:
        links = [a for a in self.all("a") if "download" in a]
        return {a["download"]: base64.b64decode(a["href"].split(",")[1], validate=True) for a in links}

    @property
    def headings(self) -> list[str]:
        """What stands in the elements h2."""
        return self._headings

    def __init__(self, html: str) -> None:
        self._headings: list[str] = []
        super().__init__(html)

    def handle_data(self, data) -> None:
        super().handle_data(data)
        if self._open and self._open[-1] == "h2":
            self._headings.append(data)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The folder of a run with all that there may be."""
    folder = tmp_path_factory.mktemp("report") / "runs" / "ala2"
    folder.mkdir(parents=True)
    data = ala2_data(folder.parent.parent / "ala2.h5")
    split = {"file": "ala2.h5", "frames": 120, "kind": "time", "validation": [[60, 120]]}
    generator = ala2_generator(data)
    generator.save(folder / "model.safetensors", split=split)
    (folder / "config.json").write_text("{}\n")
    values = {"nll": -1.0, "validation_nll": -0.5, "force_matching": 2.0, "ess": 0.1}
    lines = [f"{step},{name},{value / step}" for step in (1, 2, 3) for name, value in values.items()]
    (folder / "log.csv").write_text("step,name,value\n" + "\n".join(lines) + "\n4,nl")
    frames = trajectory.read(data).positions[-3:].astype(np.float64)
    config = DynamicsConfig(replicas=2, dt=1e-4, equilibration=0.001, production=0.003, every=5)
    (folder / "dynamics").mkdir()
    energy = FlowEnergy(generator.double())
    run_dynamics(energy, molecule("ala2"), frames, config).save(folder / "dynamics" / "record.npz")
    return folder


@pytest.fixture(scope="module")
def energy() -> OpenMMEnergy:
    with OpenMMEnergy(molecule("ala2"), workers=1) as energy:
        yield energy


@pytest.fixture(scope="module")
def written(run: Path, energy) -> Written:
    data = run.parent.parent / "ala2.h5"
    return write_report(
        run / "model.safetensors", out=run / "report.html", energy=energy, data=data, samples=300
    )


@pytest.fixture(scope="module")
def html(written: Written) -> str:
    return written.page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Reader:
    return Reader(html)


def test_all_parts_are_there(page: Reader) -> None:
    assert page.headings == list(HEADINGS)
    alts = [image["alt"] for image in page.all("img")]
    # 21 bonds, 20 angles, 19 torsions; 3 Ramachandran plots; 2 + 3 + 3 free energies; 2 of forces; 3 of
    # energies; 3 maps; 3 of training; 2 of dynamics.
    assert len(alts) == 60 + 3 + 8 + 2 + 3 + 3 + 3 + 2 and all(alts)
    assert [name for name, _ in page.elements].count("h1") == 1


def test_nothing_outside_is_referred_to(html: str, page: Reader) -> None:
    references = [v for _, a in page.elements for k, v in a.items() if k in ("src", "href", "action", "data")]
    assert references and all(value.startswith(("data:", "#")) for value in references)
    assert not re.search(
        r"url\(|@import|https?:|//cdn|fetch\(|XMLHttpRequest|import\(", _without_base64(html)
    )
    anchors = {a["href"] for a in page.all("a") if a["href"].startswith("#")}
    assert anchors <= {f"#{section['id']}" for section in page.all("section") if "id" in section}
    assert len(html) < 6e6


def test_numbers_are_those_of_the_evaluation(run: Path, written: Written, page: Reader, energy) -> None:
    assert written.metrics == run / "metrics.json"
    generator = BoltzmannGenerator.load(run / "model.safetensors")
    split = {"file": "ala2.h5", "frames": 120, "validation": [[60, 120]]}
    found = evaluate(generator, run.parent.parent / "ala2.h5", energy, split=split, samples=300).plain()
    shown = json.loads(page.downloads["metrics.json"])
    assert shown == read_json(written.metrics)
    assert shown["measures"] == found["measures"] and shown["residues"] == found["residues"]
    nll = found["measures"]["nll"]
    (cell,) = [text for text in page.text if text.startswith(f"{nll['value']:.1f}"[:5]) and "±" in text][:1]
    value, error = map(float, cell.split(" ± "))
    assert abs(value - nll["value"]) < 0.1 * nll["error"] and error == pytest.approx(nll["error"], rel=0.1)
    assert "300 samples" in " ".join(page.text) and "60 frames of ala2.h5" in " ".join(page.text)


def test_verdicts_are_words_and_shapes(html: str, page: Reader, written: Written) -> None:
    text = " ".join(page.text)
    for verdict in written.verdicts:
        assert f"{verdict.subject}: {verdict.level}." in text and verdict.rule in text
    assert len(page.all("svg")) == len(written.verdicts) == 9
    # Every level has a drawing of its own.
    drawings = dict(re.findall(r'class="verdict (\w+)">\s*<svg[^>]*>(.*?)</svg>', html))
    assert len(set(drawings.values())) == len(drawings) >= 2
    assert {v.subject for v in written.verdicts} >= {"Weights", "Forces", "Dynamics", "Torsions, ALA2"}


def test_all_files_can_be_saved(run: Path, page: Reader) -> None:
    files = page.downloads
    assert set(files) == {
        "metrics.json", "metrics.csv", "verdicts.csv", "samples.csv", "data.csv", "marginals.csv",
        "forces.csv", "transforms.csv", "free_energies.csv", "dynamics.csv", "drift.json", "config.json",
        "log.csv",
    }  # fmt: skip
    assert files["log.csv"] == (run / "log.csv").read_bytes()
    assert len(files["samples.csv"].splitlines()) == 301 and len(files["data.csv"].splitlines()) == 61
    assert len(files["marginals.csv"].splitlines()) == 1 + 60 * 10
    assert json.loads(files["drift.json"])["replicas"] == 2


def test_the_view_holds_samples(html: str, page: Reader) -> None:
    (canvas,) = page.all("canvas")
    assert canvas["tabindex"] == "0" and "22 atoms" in canvas["aria-label"]
    content = re.search(r'<script type="application/json" id="molecule-data">(.*?)</script>', html)[1]
    view = json.loads(content)
    assert view["frames"] == len(view["labels"]) == 50
    assert len(base64.b64decode(view["positions"])) == 50 * 22 * 3 * 2
    # The script is there as it is in its file, and every element that it looks for.
    script = (resources.files("knotflow.report") / "templates" / "molecule_view.js").read_text()
    assert f"<script>\n{script}</script>" in html
    ids = {a["id"] for _, a in page.elements if "id" in a}
    assert set(re.findall(r'find\("([\w-]+)"\)', html)) <= ids


def test_samples_are_drawn_once(run: Path, written: Written, energy, tmp_path: Path, monkeypatch) -> None:
    """And the evaluation is the same as with its own."""
    model, data = run / "model.safetensors", run.parent.parent / "ala2.h5"
    drawn: list[int] = []
    sample = BoltzmannGenerator.sample_and_log_prob

    def counted(self, n, **options):
        drawn.append(n)
        return sample(self, n, **options)

    monkeypatch.setattr(BoltzmannGenerator, "sample_and_log_prob", counted)
    write_report(model, out=tmp_path / "page.html", energy=energy, folder=tmp_path, data=data, samples=300)
    assert sum(drawn) == 300 + LABELLED
    first, second = (read_json(folder / "metrics.json") for folder in (run, tmp_path))
    found = evaluate(
        BoltzmannGenerator.load(model), data, energy, split=notes(model)["split"], samples=300
    ).plain()
    assert first["measures"] == second["measures"] == found["measures"]
    assert second["residues"] == found["residues"] and second["seconds"].keys() == found["seconds"].keys()


def test_an_evaluation_is_that_of_all_its_inputs(run: Path, written: Written, energy, tmp_path: Path) -> None:
    model, data = run / "model.safetensors", run.parent.parent / "ala2.h5"
    file = run / "metrics.json"

    def is_of(model: Path = model, data: Path | None = data, file: Path = file, **other: object) -> bool:
        options = {"samples": 300, "seed": 0, **other}
        return is_evaluation_of(file, evaluation_inputs(model, data, **options))

    assert is_of() and is_of(data=None) and is_of(energy=energy)
    assert not is_of(samples=200) and not is_of(seed=1) and not is_of(float64=True)
    assert not is_of(all_frames=True) and not is_of(data=None, samples=200)
    assert not is_of(energy="TorchForceField")
    # Data of another name are not those of the training, so that all rows count.
    other, moved = tmp_path / "other.h5", tmp_path / "ala2.h5"
    other.write_bytes(data.read_bytes())
    moved.write_bytes(data.read_bytes())
    assert is_of(data=moved) and not is_of(data=other)
    frames = trajectory.read(moved)
    trajectory.append(moved, replace(frames, energies=frames.energies + 1.0), at=0)
    assert not is_of(data=moved)
    assert not is_of(file=tmp_path / "none.json")
    (tmp_path / "metrics.json").write_text('{"about": 3}')
    assert not is_of(file=tmp_path / "metrics.json")
    copy, another = tmp_path / "copy.safetensors", tmp_path / "another.safetensors"
    copy.write_bytes(model.read_bytes())
    BoltzmannGenerator.load(model).save(another)  # the same weights, without the notes of the training
    assert is_of(copy) and not is_of(another)


def test_numbers_are_recomputed_when_something_has_changed(tmp_path: Path, monkeypatch) -> None:
    data, model = chain_data(tmp_path / "chain.h5", n=60), tmp_path / "chain.safetensors"
    chain_generator().save(model)
    said: list[str] = []

    def measured(**options: int) -> bool:
        """Whether a report measures, or takes the numbers that are there."""
        said.clear()

        def progress(doing: str, done: float, total: float, note: str = "") -> None:
            said.append(doing)

        written = write_report(
            model, out=tmp_path / "page.html", energy=energy, data=data, progress=progress, **options
        )
        again = "distances and error bars" in said
        assert (written.metrics == tmp_path / "metrics.json") is again
        page = Reader(written.page.read_text(encoding="utf-8"))
        assert json.loads(page.downloads["metrics.json"])["about"]["samples"] == options["samples"]
        return again

    with OpenMMEnergy(chain(), workers=1) as energy:
        assert measured(samples=40) and not measured(samples=40)
        assert measured(samples=50) and not measured(samples=50)
        assert measured(samples=50, seed=3) and not measured(samples=50, seed=3)
        frames = trajectory.read(data)
        trajectory.append(data, frames[:50], at=0)
        assert measured(samples=50, seed=3) and not measured(samples=50, seed=3)
        trajectory.append(data, replace(frames[:50], replica=frames.replica[:50] + 1), at=0)
        assert measured(samples=50, seed=3)
        monkeypatch.setattr(evaluation, "__version__", "another")
        assert measured(samples=50, seed=3)


def test_without_data_and_run_the_page_has_what_there_is(
    run: Path, written, energy, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(generator_page, "SHOWN", 2)
    model = tmp_path / "mine.safetensors"
    model.write_bytes((run / "model.safetensors").read_bytes())
    found = write_report(model, out=tmp_path / "new" / "page.html", energy=energy, samples=60, seed=2)
    page = Reader(found.page.read_text(encoding="utf-8"))
    text = " ".join(page.text)
    assert page.headings == [heading for heading in HEADINGS if "in numbers" not in heading]
    for sentence in (
        "No data were available, so MD is missing.",
        "No data were available, so forces are compared on samples only.",
        "There is no log.csv beside the model",
        "There is no dynamics/record.npz of this model beside it",
        "not compared with data",
        "The 2 of 21 that come first; all are in marginals.csv.",
    ):
        assert sentence in text
    levels = {verdict.subject: verdict.level for verdict in found.verdicts}
    assert levels["Density"] is levels["Forces"] is levels["Coverage"] is Level.UNKNOWN
    (structures,) = (verdict for verdict in found.verdicts if verdict.subject == "Structures")
    assert "of 60 unusable" in structures.sentence and found.metrics is None
    assert json.loads(page.downloads["metrics.json"])["about"]["seed"] == 2
    assert not (tmp_path / "metrics.json").exists()


def test_molecules_without_phi_and_psi(tmp_path: Path) -> None:
    data, model = chain_data(tmp_path / "chain.h5", n=200), tmp_path / "chain.safetensors"
    chain_generator().save(model)
    with OpenMMEnergy(chain(), workers=1) as energy:
        found = write_report(model, out=tmp_path / "page.html", energy=energy, data=data, samples=200)
    page = Reader(found.page.read_text(encoding="utf-8"))
    text = " ".join(page.text)
    assert "No two torsions turn" in text and "200 frames of chain.h5 (all of them)" in text
    assert any(image["alt"].startswith("Free energy along C1-C2-C3-C4") for image in page.all("img"))
    assert (
        "free_energies.csv" not in page.downloads
        and "C1-C2-C3-C4,MD" in page.downloads["torsions.csv"].decode()
    )
    assert not [v for v in found.verdicts if "phi" in v.sentence]
    assert {v.subject: v.level for v in found.verdicts}["Efficiency"] is Level.GOOD


def test_states_of_an_evaluation_are_on_the_page(tmp_path: Path) -> None:
    """Also if other samples are wanted; a file of numbers from before there were states is made again."""
    data, model = chain_data(tmp_path / "chain.h5", n=400), tmp_path / "chain.safetensors"
    chain_generator().save(model)
    states, file = (
        ["left: torsion 0 1 2 3 in -180..0", "right: torsion 0 1 2 3 in 0..180"],
        tmp_path / "metrics.json",
    )
    with OpenMMEnergy(chain(), workers=1) as energy:
        evaluate_file(model, data, file, samples=100, states=states, energy=energy)
        for samples, written in ((100, None), (120, file)):
            found = write_report(model, out=tmp_path / "page.html", energy=energy, data=data, samples=samples)
            page = Reader(found.page.read_text(encoding="utf-8"))
            assert found.metrics == written and {"States", "Free energies between states"} <= {*page.headings}
            assert "your states: F(right) - F(left)" in page.text and "States" in [
                v.subject for v in found.verdicts
            ]
            assert "your states,left,data,0." in page.downloads["states.csv"].decode()
        old = read_json(file)
        del old["states"], old["about"]["states"]
        file.write_text(json.dumps(old))
        assert is_evaluation_of(file, evaluation_inputs(model, data, samples=120))
        found = write_report(model, out=tmp_path / "page.html", energy=energy, data=data, samples=120)
        assert found.metrics == file and read_json(file)["about"]["states"] == []


def test_dynamics_of_another_model_are_not_shown(run: Path, written, energy, tmp_path: Path) -> None:
    from knotflow.workflows import report as generator_report

    (tmp_path / "dynamics").mkdir()
    model = tmp_path / "model.safetensors"
    model.write_bytes((run / "model.safetensors").read_bytes())
    record = generator_report.Record.load(run / "dynamics" / "record.npz")
    for owner, shown in ((generator_report.file_fingerprint(model), True), ("another", False), (None, True)):
        record.about["model"] = owner
        record.save(tmp_path / "dynamics" / "record.npz")
        assert ("record" in generator_report._beside(model, tmp_path)) is shown


def test_training_curves_without_a_torn_line(run: Path) -> None:
    curves = read_curves(run / "log.csv")
    assert set(curves) == {"nll", "validation_nll", "force_matching", "ess"}
    steps, values = curves["nll"]
    assert steps.tolist() == [1, 2, 3] and values.tolist() == [-1.0, -0.5, -1 / 3]


def test_data_are_found_where_one_keeps_them(run: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = run / "model.safetensors"
    assert find_data(model) == (run.parent.parent / "ala2.h5").resolve()
    lonely = tmp_path / "far" / "from" / "home" / "m.safetensors"
    lonely.parent.mkdir(parents=True)
    lonely.write_bytes(model.read_bytes())
    assert find_data(lonely) is None
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ala2.h5").write_text("no trajectory")
    assert find_data(lonely) is None
    ala2_data(tmp_path / "ala2.h5", frames=3)  # another length
    assert find_data(lonely) is None
    (tmp_path / "data" / "ala2.h5").write_bytes((run.parent.parent / "ala2.h5").read_bytes())
    assert find_data(lonely) == Path("data/ala2.h5")


def test_an_old_page_stays_if_something_fails(run: Path, energy, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")
    other = chain_data(tmp_path / "chain.h5", n=10, replicas=1)
    with pytest.raises(ValueError, match="the model is of ala2 with 22 atoms"):
        write_report(run / "model.safetensors", out=page, energy=energy, data=other, samples=10)
    assert page.read_text() == "old"


def _without_base64(html: str) -> str:
    return re.sub(r"base64,[A-Za-z0-9+/=]+", "", html)
