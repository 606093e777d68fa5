"""Equality of transforms and domains: by their fields, in dictionaries, after copies."""

import copy
import dataclasses
import pickle
from itertools import combinations

import pytest

import knotflow as kf
from tests.transforms.registry import REGISTRY


@pytest.mark.parametrize("name", REGISTRY)
def test_the_same_fields_make_equal_transforms(name: str) -> None:
    f = REGISTRY[name]
    for other in (dataclasses.replace(f), copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        assert other == f
        assert hash(other) == hash(f)
        assert {f: "found"}[other] == "found"
    assert f != repr(f)


def test_other_fields_make_other_transforms() -> None:
    for (a, f), (b, g) in combinations(REGISTRY.items(), 2):
        assert (f == g) == (repr(f) == repr(g)), (a, b)
    assert kf.BSpline(8) != kf.BSpline(8, domain=kf.Circle())
    assert kf.BSpline(8) != kf.RationalQuadratic(8)
    assert kf.Interval() != kf.Circle()
    assert kf.Interval(0, 1) == kf.Interval(0.0, 1.0)
    assert kf.BSpline(8, parametrisation=kf.Slopes(max_slope=5.0)) != kf.BSpline(8)
