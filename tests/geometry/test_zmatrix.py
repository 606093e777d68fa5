"""Z-matrices by hand: order, levels, mistakes."""

import json

import pytest

from knotflow.geometry import ZMatrix, paper_zmatrix

PAPER = (
    "0 1 4 6, 1 4 6 8, 2 1 4 0, 3 1 4 0, 4 6 8 14, 5 4 6 8, 7 6 8 4, 11 10 8 6, 12 10 8 11, "
    "13 10 8 11, 15 14 8 16, 16 14 8 6, 17 16 14 15, 18 16 14 8, 19 18 16 14, 20 18 16 19, 21 18 16 19, "
    "9 8 6 14, 10 8 14 6"
)


def test_paper_zmatrix_is_that_of_the_paper() -> None:
    zmatrix = paper_zmatrix()
    assert zmatrix.n_atoms == 22 and zmatrix.frame == (14, 8, 6) and len(zmatrix.rows) == 19
    assert zmatrix.rows == tuple(tuple(map(int, row.split())) for row in PAPER.split(","))


def test_levels_place_references_first_and_as_early_as_possible() -> None:
    zmatrix = paper_zmatrix()  # its rows are not in an order of placement
    placed = {atom: 0 for atom in zmatrix.frame}
    for depth, level in enumerate(zmatrix.levels(), start=1):
        rows = [zmatrix.rows[number] for number in level]
        assert all(max(placed[reference] for reference in row[1:]) == depth - 1 for row in rows)
        placed |= {row[0]: depth for row in rows}
    assert sorted(placed) == list(range(22))


def test_lists_of_a_json_file_and_order_of_rows() -> None:
    zmatrix = ZMatrix((0, 1, 2), ((4, 3, 2, 1), (3, 2, 1, 0)))
    again = ZMatrix(**json.loads(json.dumps({"frame": zmatrix.frame, "rows": zmatrix.rows})))
    assert again == zmatrix and hash(again) == hash(zmatrix)
    assert again.rows == ((4, 3, 2, 1), (3, 2, 1, 0))
    assert again.levels() == ((1,), (0,))
    assert ZMatrix((0, 1, 2), ()).levels() == ()


@pytest.mark.parametrize(
    ("frame", "rows", "message"),
    [
        ((0, 1), (), "frame of 3 atoms"),
        ((0, 1, 2), ((3, 2, 1),), "rows .* of 4 atoms"),
        ((0, 1, 1), (), "atom 1 is placed 2 times, 2 is placed 0 times"),
        ((0, 1, 2), ((2, 1, 0, 3),), "atom 2 is placed 2 times, 3 is placed 0 times"),
        ((0, 1, 2), ((3, 2, 2, 0),), r"four different atoms of 0 to 3, got \(3, 2, 2, 0\)"),
        ((0, 1, 2), ((3, 2, 1, 4),), "four different atoms"),
        ((0, 1, 2), ((3, 2, 1, -1),), "four different atoms"),
        ((0, 1, 5), ((3, 2, 1, 0),), "exactly once"),
        ((0, 1, 2), ((3, 4, 1, 0), (4, 3, 1, 0), (5, 2, 1, 0)), "rows of atoms 3, 4 depend on each other"),
    ],
)
def test_mistakes_are_explained(
    frame: tuple[int, ...], rows: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ZMatrix(frame, rows)
