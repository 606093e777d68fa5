"""``knotflow run`` and ``knotflow quickstart``: all of it, stopped and continued."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from knotflow.storage import trajectory
from knotflow.storage.samples import read_samples
from knotflow.workflows import whole_run

SMOKE = ("quickstart", "--scale", "smoke", "--out", "here")


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_all_of_it(run_here: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch) -> None:
    here = tmp_path / "here"

    # Stopped in the fourth step, it says how to go on.
    with monkeypatch.context() as patch:
        patch.setattr(whole_run, "evaluate", interrupt)
        status, said = run_here(*SMOKE)
    assert status == 130 and said.endswith("Stopped; run the same command again to continue.")
    assert "step 1 of 6: simulating: about 60 s left" in said
    made = {name: (here / name).read_bytes() for name in ("data.h5", "model.safetensors", "samples.h5")}
    assert not (here / "metrics.json").exists() and not (here / "report.html").exists()

    # It goes on there, and leaves what was done.
    status, said = run_here(*SMOKE)
    assert status == 0
    assert "step 4 of 6: evaluating" in said and "step 3 of 6" not in said
    assert all((here / name).read_bytes() == content for name, content in made.items())
    assert len(trajectory.read(here / "data.h5").positions) == 120
    samples = read_samples(here / "samples.h5")
    assert len(samples) == 200 and np.isfinite(samples.log_weights).all()
    assert (here / "report.html").stat().st_size > 500_000
    assert not list(here.glob(".*"))  # neither locks nor parts

    # It ends with five lines, of the numbers in the files.
    metrics = json.loads((here / "metrics.json").read_text())
    for what in ("Learned:", "Samples:", "Answer:", "Look at:", "Next:"):
        assert said.count(what) == 1
    assert "120 frames of a simulation" in said
    share = metrics["measures"]["ess"]["value"]
    assert f"effective sample size {100 * share:.2g} %" in said

    # Once more: nothing is left to do.
    page = (here / "report.html").stat().st_mtime_ns
    status, said = run_here(*SMOKE)
    assert status == 0 and "everything is done already; remove here to start over" in said
    assert "step" not in said.split("Learned:")[0] and (here / "report.html").stat().st_mtime_ns == page

    # As JSON, the same; only what is missing is made again.
    (here / "samples.h5").unlink()
    status, said = run_here(*SMOKE, "--json", "--quiet")
    assert status == 0
    document = json.loads(said)
    assert document["found"]["metrics"]["measures"]["ess"]["value"] == share
    populations = document["found"]["populations"]  # of all frames, for the states of the evaluation
    states = [state["definition"] for group in metrics["states"] for state in group["states"]]
    assert list(populations) == states and all(0 < share["value"] <= 1 for share in populations.values())
    assert (here / "samples.h5").exists() and (here / "report.html").stat().st_mtime_ns == page

    # Other settings need another folder.
    status, said = run_here(*SMOKE, "--seed", "1")
    assert status == 2 and "made with seed 0, but you asked for seed 1" in said
    assert (here / "report.html").stat().st_mtime_ns == page


def test_a_file_is_no_folder(run_here, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("mine")
    status, said = run_here(*SMOKE)
    assert status == 2 and "--out must be a folder for the results, but here is a file." in said
    assert (tmp_path / "here").read_text() == "mine"


def test_a_run_says_what_it_needs(run_here, tmp_path: Path) -> None:
    status, said = run_here("run", "ala2", "--hours", "0", "--out", "here")
    assert status == 2 and "hours must be a positive number, got 0." in said
    status, said = run_here("run", "mine.xyz", "--out", "here")
    assert status == 2 and "mine.xyz" in said
    assert not (tmp_path / "here").exists()
