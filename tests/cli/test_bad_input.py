"""Molecules and energies that cannot be used: one sentence and exit status 2, from a command."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.molecules import peroxide

XTB = ("--energy", "xtb")
FACTORIES = "ase:tests.energy_factories"


@pytest.mark.parametrize(
    ("molecule", "said"),
    [
        (("C*", *XTB), "C*: atom 2 (*) is of no known element; write it out."),
        (("[PuH2]", *XTB), "GFN2-xTB cannot describe the molecule"),
        (("C", *XTB, "--charge", "1"), "an open shell: give its multiplicity, 2 for one unpaired electron"),
        (("C", *XTB, "--multiplicity", "2"), "10 electrons, at charge 0, cannot have the multiplicity 2"),
        (("CC(F)Cl", *XTB), "CC(F)Cl leaves the stereochemistry open at atom C2"),
        (("FC=CF", *XTB), "leaves the stereochemistry open at the double bond C2=C3"),
        (("O.CO", *XTB), "O.CO has 2 fragments that no bonds connect (O, CO)"),
        (
            ("[C@]12(F)[C@]3(F)[C@@]1(F)[C@@]23F", *XTB),
            "cannot be embedded: RDKit finds no structure in space",
        ),
        (("O", "--energy", f"{FACTORIES}:always_raises"), "failed on frame 1 of 1: ArithmeticError: no luck"),
        (
            ("O", "--energy", f"{FACTORIES}:always_nan"),
            "failed on frame 1 of 1: its energy or a force",
        ),
    ],
)
def test_one_sentence_says_what_is_wrong(
    run_here: Callable[..., tuple[int, str]], molecule, said: str
) -> None:
    pytest.importorskip("rdkit")
    pytest.importorskip("tblite")
    status, everything = run_here("run", *molecule, "--out", "here")
    assert status == 2 and said in everything
    assert everything.startswith("Error: ") and everything.count("Error") == 1 + ("ArithmeticError" in said)
    assert not Path("here").exists()


def test_a_prmtop_with_a_box(run_here: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    inpcrd, prmtop = peroxide.write_amber(tmp_path, box=True)
    status, said = run_here("run", str(inpcrd), "--force-field", str(prmtop), "--out", "here")
    assert status == 2 and "hooh.prmtop has a periodic box, but only vacuum and implicit" in said


def test_two_molecules(run_here: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    status, said = run_here("run", "--peptide", "AAA", "ala2", "--out", "here")
    assert status == 2 and "--molecule and --peptide both name a molecule; give only one of them." in said
    assert not (tmp_path / "here").exists()


def test_a_time_too_short_for_a_stage(run_here: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    """Refused at once, not after the first frames."""
    status, said = run_here("run", "ala2", "--hours", "0.0001", "--out", "here")
    assert status == 2 and "0.0001 hours are too short for the simulation: there is time for" in said
    assert "of the shortest one only; give it at least --hours 0." in said
    assert not (tmp_path / "here").exists()


def test_a_calculator_that_fails_later_is_reported_with_its_frame(
    run_here: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    pytest.importorskip("rdkit")
    status, said = run_here(
        "simulate", "--molecule", "O", "--energy", f"{FACTORIES}:fails_after_a_while", "--out", "here.h5",
        "--ns", "0.0001", "--replicas", "1", "--every", "0.01", "--equilibration", "0.01", "--workers", "1",
    )  # fmt: skip
    assert status == 2 and "of 1: ArithmeticError: no luck" in said
