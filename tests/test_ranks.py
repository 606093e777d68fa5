"""Shares of work: everything is done once, in order, and a process that is alone does all of it."""

import pytest
import torch

from knotflow import ranks
from knotflow.ranks import OneByOne, Team, dealt, piece_seed, share
from knotflow.workers import usable_cores


def squares(setup: int) -> OneByOne:
    return OneByOne(lambda task: setup * task**2)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [0, 1, 5, 12])
def test_shares_are_all_items_once_and_in_order(n: int, size: int) -> None:
    items = list(range(n))
    shares = [share(items, rank, size) for rank in range(size)]
    assert dealt(shares) == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_every_piece_has_its_own_seed() -> None:
    seeds = {piece_seed(seed, number) for seed in range(20) for number in range(50)}
    assert len(seeds) == 20 * 50 and all(0 <= seed < 2**63 for seed in seeds)
    assert piece_seed(7, 0) == 7 and piece_seed(7, 3) == piece_seed(7, 3)


def test_a_process_that_is_alone() -> None:
    assert (ranks.size(), ranks.rank(), ranks.team_size(), ranks.local_size()) == (
        1,
        0,
        1,
        1,
    ) and ranks.leads()
    with Team("tests.test_ranks:squares", 2) as team:
        assert team.size == 1 and team.map([1, 2, 3]) == [2, 8, 18]
        assert list(team.stream(iter(range(4)))) == [0, 2, 8, 18]
        assert team.map([]) == []
    with ranks.together("nowhere:nothing"):
        assert ranks.spread(lambda x: x + 1, [1, 2]) == [2, 3] and ranks.agreed("a") == "a"
        x = torch.arange(3.0)
        assert torch.equal(ranks.total(x), x) and torch.equal(ranks.gathered(x), x)
    said: list[int] = []
    ranks.run(lambda: said.append(ranks.team_size()))
    assert said == [1] and not torch.distributed.is_initialized()


def test_only_a_launch_by_torchrun_has_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other launchers set some of its variables, too."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    said: list[int] = []
    ranks.run(lambda: said.append(ranks.team_size()))
    assert said == [1]


def test_processes_on_one_host_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(9)), raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert usable_cores() == 9
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert usable_cores() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "40")
    assert usable_cores() == 1
