"""Kernels that compile in no time, in place of the real ones."""

import shutil
from pathlib import Path

import pytest

from knotflow.kernels import build

KERNEL = """
#include "call.hpp"
#include <atomic>
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
namespace {
void count(void* counter) { ++*static_cast<std::atomic<int>*>(counter); }
}
extern "C" int JOIN(knotflow_run_, KNOTFLOW_ISA)(const Call*) {
    std::atomic<int> counter{0};
    if (knotflow_parallel_function) knotflow_parallel_function(count, &counter, 3, 0);
    return counter;
}
"""
"""Returns how many of three threads ran."""


def has_compiler() -> bool:
    try:
        build.find_compiler()
    except build.NotBuiltError:
        return False
    return True


compiles = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")


def write_sources(folder: Path) -> Path:
    """Sources for `build`, with the kernel above."""
    folder.mkdir()
    for file in (*build.SOURCES.glob("*.hpp"), build.SOURCES / "dispatch.cpp"):
        shutil.copy(file, folder)
    (folder / "kernels.cpp").write_text(KERNEL)
    return folder
