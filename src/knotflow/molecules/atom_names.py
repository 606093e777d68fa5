"""Atoms by name: ``CA``, or ``ALA2:CA`` in molecules of several residues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import mdtraj

KINDS: Final = {2: "bond", 3: "angle", 4: "torsion"}


def atom_names(topology: mdtraj.Topology) -> list[str]:
    """A name of its own for each atom: ``CA``, ``ALA2:CA``, or element and number as the last resort."""
    atoms = list(topology.atoms)
    names = [a.name if topology.n_residues == 1 else f"{a.residue}:{a.name}" for a in atoms]
    counts = Counter(names)
    return [
        name if counts[name] == 1 else f"{a.element.symbol}{a.index}"
        for a, name in zip(atoms, names, strict=True)
    ]


def joined_names(atoms: Iterable[int], names: Sequence[str]) -> str:
    """Names of some atoms; a residue that repeats is left out: ``ACE1:C-ALA2:N-CA-C``."""
    found, last = [], ""
    for atom in atoms:
        residue, colon, name = names[atom].rpartition(":")
        found.append(name if colon and residue == last else names[atom])
        last = residue
    return "-".join(found)


def coordinate_name(atoms: Sequence[int], names: Sequence[str]) -> str:
    """The name of a bond, an angle or a torsion: ``bond ALA2:CA-CB``."""
    return f"{KINDS[len(atoms)]} {joined_names(atoms, names)}"


def find_atom(word: str, topology: mdtraj.Topology) -> int:
    """The atom that a user names by its number from 0, by its name, or by residue and name.

    Raises:
        ValueError: if there is no such atom, or several.
    """
    n = topology.n_atoms
    if word.isdecimal():
        if int(word) < n:
            return int(word)
        raise ValueError(f"there is no atom {word}; atoms are numbered from 0 to {n - 1}.")
    names = atom_names(topology)
    found = [
        a.index for a in topology.atoms if word in (a.name, f"{a.residue}:{a.name}", names[a.index])
    ]  # fmt: skip
    if len(found) == 1:
        return int(found[0])
    if found:
        choices = ", ".join(f"{names[i]} ({i})" for i in found[:6])
        raise ValueError(f"{len(found)} atoms are called {word}: {choices}; name one with its residue.")
    some = ", ".join(names[:6])
    raise ValueError(
        f"there is no atom {word}; give a number from 0 to {n - 1}, or a name such as those of the first "
        f"atoms: {some}."
    )
