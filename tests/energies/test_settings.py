"""Energies as they are written on the command line and in files."""

import pytest

from knotflow.energies.settings import parse_settings, read_energy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("xtb", {"kind": "xtb", "method": "GFN2-xTB", "charge": 0, "multiplicity": None}),
        ("ase:a.b:c", {"kind": "ase", "factory": "a.b:c", "charge": None, "multiplicity": None}),
        ("module:a.b:c", {"source": "a.b:c", "energy_unit": "eV", "length_unit": "angstrom"}),
        ("module:a.b:c,kJ/mol,nm", {"source": "a.b:c", "energy_unit": "kJ/mol", "length_unit": "nm"}),
    ],
)
def test_energies_are_read(text: str, expected: dict[str, object]) -> None:
    found = read_energy(text)
    assert found is not None
    assert found.items() >= expected.items()
    assert parse_settings(found).plain() == found


def test_the_force_field_is_no_other_energy() -> None:
    assert read_energy("force-field") is None


@pytest.mark.parametrize(
    ("text", "electrons", "sentence"),
    [
        ("dft", {}, "an energy must be force-field, xtb, ase:.* got 'dft'"),
        ("ase:", {}, "an energy must be"),
        ("force-field", {"charge": 1}, "--charge must go with the energies xtb or ase; force-field needs"),
        ("module:a:b", {"multiplicity": 1}, "--multiplicity must go with"),
        ("module:a:b,kcal", {}, "energy_unit: .*kJ/mol.*got 'kcal'"),
        ("module:a:b,eV,nm,K", {}, "at most an energy and a length, got eV,nm,K"),
        ("xtb", {"multiplicity": 0}, "multiplicity: .*greater than or equal to 1, got 0"),
    ],
)
def test_what_cannot_be_understood_is_refused(text: str, electrons: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_energy(text, **electrons)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of xtb, ase, module, got 'dft'"):
        parse_settings({"kind": "dft"})
