"""No damaged file wins: it is refused in a sentence with its name, or nothing that it says was changed."""

import logging
import zlib
from pathlib import Path

import numpy as np
import pytest

from knotflow.flows.boltzmann import BoltzmannGenerator
from knotflow.tensor_files import as_metadata, parse_metadata, read_tensors, write_tensors
from tests.damaged import KINDS, damage, odd, plain
from tests.flows.generators import make
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


@pytest.mark.soak
def test_models_with_odd_descriptions(tmp_path: Path) -> None:
    """Made to fit their checksums: refused by name, or they are still models."""
    path, random, refused = tmp_path / "model.safetensors", np.random.default_rng(0), 0
    make("no stereocentre").save(path)
    tensors, metadata = read_tensors(path)
    for number in range(times(60)):
        part = ("config", "notes")[number % 2]
        changed = as_metadata(**{part: odd(parse_metadata(path, metadata, part), random)})
        write_tensors(path, tensors, {**metadata, **changed})
        try:
            BoltzmannGenerator.load(path)
        except ValueError as error:
            refused += 1
            assert path.name in str(error), f"mutation {number}: {error}"
    assert refused > times(60) // 4
