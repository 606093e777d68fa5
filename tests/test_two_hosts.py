"""Two hosts: network namespaces of this machine, with a cable between them and no other way out."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from knotflow.storage.samples import read_samples
from tests import ranked
from tests.test_torchrun import ROOT, SAMPLE

pytestmark = pytest.mark.slow

ADDRESSES = ("10.213.77.1", "10.213.77.2")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Names of two namespaces."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root, and ip of iproute2")
    names = [f"knotflow-{os.getpid()}-{number}" for number in range(2)]
    try:
        for name in names:
            ip("netns", "add", name)
        ip(
            "link",
            "add",
            "cable",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            "cable",
            "netns",
            names[1],
        )
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not allowed here: {error.stderr.decode().strip()}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def start(host: str, number: int, folder: Path, *module: str) -> subprocess.Popen[str]:
    """One rank on a host, as on each node of a cluster."""
    command = [
        "ip", "netns", "exec", host, sys.executable, "-m", "torch.distributed.run",
        "--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:29400", "--rdzv-id", "test",
        "--rdzv-conf", f"is_host={number == 0}", "--local-addr", ADDRESSES[number], "-m", *module,
    ]  # fmt: skip
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
    settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "cable"}
    return subprocess.Popen(command, cwd=folder, env=os.environ | settings, stderr=subprocess.PIPE, text=True)


def test_two_hosts_make_the_same_samples_as_one(hosts: list[str], tmp_path: Path) -> None:
    (tmp_path / "commands.json").write_text(json.dumps([SAMPLE]))
    running = [
        start(host, number, tmp_path, "tests.ranked", "commands.json") for number, host in enumerate(hosts)
    ]
    said = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    found = read_samples(tmp_path / "samples.h5")
    (tmp_path / "alone").mkdir()
    ranked.alone(tmp_path / "alone", [SAMPLE])
    expected = read_samples(tmp_path / "alone" / "samples.h5")
    for column in ("positions", "log_prob", "log_weights"):
        np.testing.assert_array_equal(getattr(found, column), getattr(expected, column), err_msg=column)
