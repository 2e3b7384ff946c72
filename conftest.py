"""Tests, doctests and benchmarks run in double precision and compile quickly."""

import jaxsmi as smi

smi.setup()
