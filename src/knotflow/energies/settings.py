"""Which energy a molecule has, as plain values: the field ``energy`` of a `MolecularSystem`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from knotflow.config import Config
from knotflow.inputs import file_fingerprint

Multiplicity = Annotated[int, Field(ge=1)]

MODULE_FILES: Final = (".pt", ".pt2", ".pth", ".ts")


class _Settings(Config):
    zero_kj: float = 0.0
    """In kJ/mol: the energy of the minimised structure. Energies are relative to it, because large numbers
    would cost digits in single precision."""


class XTBSettings(_Settings):
    """Extended tight binding by tblite."""

    kind: Literal["xtb"] = "xtb"
    method: Literal["GFN2-xTB", "GFN1-xTB", "IPEA1-xTB"] = "GFN2-xTB"
    charge: int = 0
    """Of the whole molecule, in elementary charges."""
    multiplicity: Multiplicity | None = None
    """Number of unpaired electrons plus one; None: 1, if the number of electrons is even."""


class ASESettings(_Settings):
    """A calculator of ASE."""

    kind: Literal["ase"] = "ase"
    factory: str
    """``"package.module:factory"``, a function without arguments that returns a calculator."""
    charge: int | None = None
    """If given, ``atoms.info["charge"]``."""
    multiplicity: Multiplicity | None = None
    """If given, ``atoms.info["spin"]``."""


class ModuleSettings(_Settings):
    """A potential in torch, see `knotflow.energies.module_energy`."""

    kind: Literal["module"] = "module"
    source: str
    """A file, or ``"package.module:factory"``."""
    energy_unit: Literal["kJ/mol", "eV", "hartree"] = "eV"
    length_unit: Literal["nm", "angstrom"] = "angstrom"
    fingerprint: str | None = None
    """Of the file."""


EnergySettings = XTBSettings | ASESettings | ModuleSettings

KINDS: Final[dict[str, type[EnergySettings]]] = {
    "xtb": XTBSettings,
    "ase": ASESettings,
    "module": ModuleSettings,
}


def parse_settings(plain: Mapping[str, Any]) -> EnergySettings:
    """The settings in plain values.

    Raises:
        ValueError: if there is no such energy, or a value is wrong.
    """
    if plain.get("kind") not in KINDS:
        raise ValueError(
            f"the kind of an energy must be one of {', '.join(KINDS)}, got {plain.get('kind')!r}."
        )
    return KINDS[plain["kind"]].parse(dict(plain))


def read_energy(
    text: str, charge: int | None = None, multiplicity: int | None = None
) -> dict[str, Any] | None:
    """An energy as it is written on the command line, as plain values; None for ``"force-field"``.

    Args:
        text: ``force-field``, ``xtb``, ``ase:package.module:factory``, or ``module:`` and a file or a
            factory, which may be followed by its units, as in ``module:model.pt2,hartree,angstrom``.
        charge: Of the molecule, for ``xtb`` and ``ase``.
        multiplicity: Of the molecule, likewise.

    Raises:
        ValueError: if it cannot be understood.
        OSError: if there is no such file.
    """
    kind, _, source = text.partition(":")
    electrons = {"charge": charge, "multiplicity": multiplicity}
    electrons = {name: value for name, value in electrons.items() if value is not None}
    if electrons and kind in ("force-field", "module"):
        raise ValueError(
            f"{' and '.join(f'--{name}' for name in electrons)} must go with the energies xtb or ase; "
            f"{kind} needs nothing of the kind, so leave it out."
        )
    if text == "force-field":
        return None
    if text == "xtb":
        return XTBSettings.parse(electrons).plain()
    if kind == "ase" and source:
        return ASESettings.parse({"factory": source, **electrons}).plain()
    if kind == "module" and source:
        source, *units = source.split(",")
        if len(units) > 2:
            raise ValueError(f"the units are at most an energy and a length, got {','.join(units)}.")
        names = ("energy_unit", "length_unit")
        given: dict[str, Any] = {"source": source} | dict(zip(names, units, strict=False))
        if Path(source).suffix in MODULE_FILES:
            if not Path(source).is_file():
                raise FileNotFoundError(f"there is no file {source} with a potential.")
            given |= {"source": str(Path(source).resolve()), "fingerprint": file_fingerprint(source)}
        return ModuleSettings.parse(given).plain()
    raise ValueError(
        "an energy must be force-field, xtb, ase:package.module:factory, module:file or "
        f"module:package.module:factory, got {text!r}."
    )
