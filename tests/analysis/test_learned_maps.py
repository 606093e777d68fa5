"""Maps that a flow has learned, with the slopes they say."""

import numpy as np
import pytest
import torch

from knotflow.analysis.learned_maps import GRID, learned_maps
from knotflow.molecules.atom_names import atom_names, coordinate_name
from knotflow.molecules.system import topology_from_plain
from tests.flows import generators


@pytest.mark.parametrize("name", ["ala2, circles", "ala2, lines"])
def test_maps_have_the_slopes_they_say(name: str) -> None:
    model = generators.make(name)
    q = model.internal(generators.positions(model, 30))[0]
    q = model.flow.sample(30, generator=torch.Generator().manual_seed(0)) if "circles" in name else q
    found = learned_maps(model, q.detach().numpy(), points=6)
    assert [learned.name.split()[0] for learned in found] == ["torsion", "angle", "bond"]
    names = atom_names(topology_from_plain(model.molecule["topology"]))
    named = {coordinate_name(atoms, names) for atoms in model.coordinates.atoms}
    for learned in found:
        assert learned.y.shape == learned.slopes.shape == (6, GRID)
        assert learned.name in named
        slopes = np.diff(learned.y, axis=1) / np.diff(learned.x)
        middle = (learned.slopes[:, 1:] + learned.slopes[:, :-1]) / 2
        seam = np.diff(learned.y, axis=1) < -(learned.x[-1] - learned.x[0]) / 2
        assert (seam.sum(1) <= 1).all()
        assert np.allclose(slopes[~seam], middle[~seam], rtol=0.05, atol=0.02)
