"""PDB files of many models, written without other packages.

Columns follow version 3.3 of the format. Numbers too large for their columns start again from zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ANGSTROM: Final = 0.1
"""In nm."""
REACH: Final = 99.9
"""In nm: the largest coordinate that fits into eight columns with three decimals."""


class PdbFile:
    """A growing PDB file with one model per structure and the bonds at its end.

    Args:
        path: The file; replaced if it exists.
        topology: Chains, residues, atoms and bonds, as in `MolecularSystem.plain`.
    """

    def __init__(self, path: Path, topology: Mapping[str, Any]) -> None:
        self._model = "".join(_model_lines(topology))
        self._connections = "".join(_connection_lines(topology["bonds"]))
        self._models = 0
        self._file = path.open("w", encoding="ascii", errors="replace", newline="\n")

    def write(self, positions: NDArray[np.float32]) -> None:
        """Add structures (n, atoms, 3) in nm.

        Raises:
            ValueError: if a coordinate does not fit into its columns.
        """
        if not (np.abs(positions) < REACH).all():
            raise ValueError(
                f"positions in a PDB file must be within {REACH} nm of the origin, got "
                f"{np.abs(positions).max():g} nm; use .h5, .xtc or .dcd."
            )
        for frame in positions / np.float32(ANGSTROM):
            self._models += 1
            self._file.write(f"MODEL     {self._models % 10_000:4d}\n")
            self._file.write(self._model % tuple(frame.ravel().tolist()))

    def close(self) -> None:
        """Write the bonds and close the file; further calls do nothing."""
        if not self._file.closed:
            self._file.write(self._connections + "END\n")
            self._file.close()


def _model_lines(topology: Mapping[str, Any]) -> Iterator[str]:
    """Lines of a model, with placeholders for the positions in Å."""
    number = 0
    for chain, letter in zip(topology["chains"], cycle(ascii_uppercase), strict=False):
        for residue in chain["residues"]:
            for atom in residue["atoms"]:
                number += 1
                # Names of up to three letters start in the second column, except for two-letter elements.
                name, element = _clean(atom["name"], 4), _clean(atom["element"], 2).upper()
                name = f"{name:<4}" if len(name) == 4 or len(element) == 2 else f" {name:<3}"
                line = f"ATOM  {number % 100_000:5d} {name} {_clean(residue['name'], 3):>3} {letter}"
                yield (
                    line.replace("%", "%%")
                    + f"{residue['resSeq'] % 10_000:4d}    %8.3f%8.3f%8.3f  1.00  0.00          "
                    f"{element:>2}  \n"
                )
        yield "TER\n"
    yield "ENDMDL\n"


def _clean(name: str, width: int) -> str:
    """A name that fits into its columns: spaces and what is no ASCII letter, digit or sign become "_"."""
    return "".join(letter if "!" <= letter <= "~" else "_" for letter in name[:width])


def _connection_lines(bonds: Any) -> Iterator[str]:
    """Bonds, with up to four partners per line."""
    partners: dict[int, list[int]] = {}
    for i, j in bonds:
        partners.setdefault(int(i), []).append(int(j))
        partners.setdefault(int(j), []).append(int(i))
    for atom, others in sorted(partners.items()):
        for first in range(0, len(others), 4):
            numbers = [atom, *sorted(others)[first : first + 4]]
            yield "CONECT" + "".join(f"{(n + 1) % 100_000:5d}" for n in numbers) + "\n"
