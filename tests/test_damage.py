"""No damaged file wins: it is refused in a sentence with its name, or nothing that it says was changed."""

import logging
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.damaged import KINDS, damage, plain
from tests.soak import times


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:WARNING:UserWarning")  # of OpenMM, about damaged PDB files
@pytest.mark.parametrize("name", KINDS)
def test_mutations(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "knotflow")
    kind, path = KINDS[name], tmp_path / name
    kind.write(path)
    target, whole = kind.damaged(path), plain(kind.read(path)) if kind.sealed else None
    content, random = target.read_bytes(), np.random.default_rng(zlib.crc32(name.encode()))
    refused = 0
    for number in range(times(200)):
        hurt = damage(content, random)
        target.write_bytes(hurt)
        try:
            found = kind.read(path)
        except (ValueError, OSError) as error:
            refused += 1
            assert target.name in str(error), f"mutation {number}: {error}"
            assert "\n" not in str(error), f"mutation {number}: {error}"
        else:
            assert not kind.sealed or plain(found) == whole, f"mutation {number}"
    assert refused > times(200) // 4
