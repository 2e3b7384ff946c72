"""Fixtures of all tests."""

import os
from pathlib import Path

import jax
import pytest

os.environ.setdefault("JAXSMI_CACHE", "off")  # the command line writes nothing into a home

REFERENCE = (
    Path(__file__).resolve().parents[2] / "shared" / "reference"
)  # beside the project, not in it


@pytest.fixture(scope="module", autouse=True)
def programs_of_one_module(request):
    """Compiled programs are kept for one file of slow tests only: those of all files together take
    7 GB in hours, and a process ends at some number of them."""
    yield
    if (
        "slow" in request.config.option.markexpr
        and "not slow" not in request.config.option.markexpr
    ):
        jax.clear_caches()


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder of reference values; the test is skipped where it is absent."""
    if not REFERENCE.is_dir():
        pytest.skip("no reference data: the folder ../shared/reference is not beside the project")
    return REFERENCE
