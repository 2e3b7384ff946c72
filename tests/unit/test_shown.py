"""What a reader sees at the prompt and in a notebook."""

import importlib.metadata

import jaxsmi as smi


def test_version_is_that_of_the_package():
    assert smi.__version__ == importlib.metadata.version("jaxsmi")
