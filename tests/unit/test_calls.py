"""Calls kept on disk: found again by what they are, refused where that is not known."""

import json
import os
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsmi.core import calls
from jaxsmi.core.programs import program

SCRIPT = """
import json, sys, jax
jax.config.update("jax_enable_x64", True)
from jaxsmi.core.cache import keep_programs
keep_programs()
traced = []
def heard(event, seconds, fun_name="", **_):
    if event.endswith("jaxpr_trace_duration"):
        traced.append(fun_name)
jax.monitoring.register_event_duration_secs_listener(heard)
import jaxsmi as smi
solution = smi.state_evolution(smi.links.phase_retrieval(), 0.8, key=jax.random.key(0))
answer = solution.overlap.tolist(), solution.stderr.tolist(), solution.model.title
print(json.dumps({"answer": answer, "traced": traced}))
"""


@pytest.fixture
def folder(tmp_path):
    """Calls are kept there."""
    calls.keep(tmp_path)
    yield tmp_path
    calls.keep(None)


@pytest.fixture
def named(monkeypatch):
    """A function as one of the library's, which counts how often it is traced."""
    traces = []

    def doubled(x, times=2, function=None):
        traces.append(1)
        return {"answer": times * x, "times": times}

    module = types.ModuleType("jaxsmi.of_this_test")
    doubled.__module__ = module.__name__
    doubled.__qualname__ = doubled.__name__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return doubled, traces


def afresh(called, *args, **kwargs):
    """The answer of a program that this process has not called before."""
    return program(called)(*args, **kwargs)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="calls are kept on CPUs")
@pytest.mark.slow
def test_a_second_process_traces_nothing(tmp_path):
    told = []
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    environment |= {"JAXSMI_CACHE": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    for _ in range(2):
        command = [sys.executable, "-c", SCRIPT]
        out = subprocess.run(command, env=environment, capture_output=True, check=True).stdout
        told.append(json.loads(out))
    assert told[0]["answer"] == told[1]["answer"]
    assert {"advance", "begin", "_solution"} <= set(told[0]["traced"])
    assert not {"advance", "begin", "_solution"} & set(told[1]["traced"])


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="calls are kept on CPUs")
class TestFound:
    """Found where nothing has changed."""

    def test_again(self, folder, named):
        function, traces = named
        for _ in range(2):
            answer = afresh(function, jnp.arange(3.0), times=3)
            assert answer["answer"].tolist() == [0.0, 3.0, 6.0]
            assert answer["times"] == 3
        assert len(traces) == len(list(folder.iterdir())) == 1

    @pytest.mark.parametrize(
        "other",
        [
            (np.arange(4.0), 3),
            (np.arange(3.0, dtype="float32"), 3),
            (np.arange(3.0), 4),
            (np.arange(3.0), 3.0),
        ],
    )
    def test_not_for_another_call(self, folder, named, other):
        function, traces = named
        afresh(function, jnp.arange(3.0), times=3)
        x, times = other
        assert np.all(afresh(function, jnp.asarray(x), times=times)["answer"] == times * x)
        assert len(traces) == 2

    def test_not_with_another_setting(self, folder, named):
        function, traces = named
        for setting in ("highest", "default"):
            with jax.default_matmul_precision(setting):
                afresh(function, jnp.arange(3.0))
        assert len(traces) == 2

    def test_not_with_other_sources(self, folder, named, monkeypatch):
        function, traces = named
        for text in (b"before", b"after"):
            monkeypatch.setattr(calls, "_surroundings", lambda text=text: text)
            afresh(function, jnp.arange(3.0))
        assert len(traces) == 2

    def test_a_broken_file_is_compiled_again(self, folder, named):
        function, traces = named
        afresh(function, jnp.arange(3.0))
        for file in folder.iterdir():
            file.write_bytes(b"broken")
        for _ in range(2):
            assert afresh(function, jnp.arange(3.0))["answer"].tolist() == [0.0, 2.0, 4.0]
        assert len(traces) == 2

    def test_programs_of_lapack(self, folder, named):
        """Of a process that has lowered none it is another test's (the second process)."""
        function, _ = named
        factor = lambda x: jnp.linalg.cholesky(function(x)["answer"])
        factor.__module__, factor.__qualname__ = function.__module__, "factor"
        for _ in range(2):
            assert afresh(factor, 2.0 * jnp.eye(2)).tolist() == [[2.0, 0.0], [0.0, 2.0]]
        assert len(list(folder.iterdir())) == 1


class TestRefused:
    """Nothing is kept of what cannot be known to be the same."""

    def test_a_function_of_a_user(self, folder, named):
        function, _ = named
        assert afresh(function, jnp.ones(2), function=_user)["answer"].tolist() == [2.0, 2.0]
        assert afresh(_user, 1.0) == 2.0
        assert not list(folder.iterdir())

    def test_a_disk_that_is_full(self, folder, named, monkeypatch):
        """The call answers, and nothing of its file stays."""

        def full(self, content):
            self.open("wb").write(content[:9])
            raise OSError("No space left on device")

        function, _ = named
        monkeypatch.setattr(type(folder), "write_bytes", full)
        assert afresh(function, jnp.ones(2))["answer"].tolist() == [2.0, 2.0]
        assert not list(folder.iterdir())

    def test_a_program_that_calls_back(self, folder, named):
        function, _ = named

        def calling(x):
            jax.debug.callback(lambda _: None, x)
            return function(x)["answer"]

        calling.__module__, calling.__qualname__ = function.__module__, "calling"
        assert afresh(calling, jnp.ones(2)).tolist() == [2.0, 2.0]
        assert not list(folder.iterdir())

    @pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
    def test_others_who_would_write_into_a_file(self, folder, named):
        function, _ = named
        before = os.umask(0)
        try:
            afresh(function, jnp.ones(2))
        finally:
            os.umask(before)
        assert [x.stat().st_mode & 0o777 for x in folder.iterdir()] == [0o600]

    @pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
    def test_a_folder_that_others_may_write_to(self, folder, named):
        function, _ = named
        folder.chmod(0o770)
        assert afresh(function, jnp.ones(2))["answer"].tolist() == [2.0, 2.0]
        assert not list(folder.iterdir())

    def test_nothing_without_a_folder(self, tmp_path, named):
        function, _ = named
        assert calls.kept_in() is None
        assert afresh(function, jnp.ones(2))["answer"].tolist() == [2.0, 2.0]


def _user(x):
    return x + 1.0


def test_the_folder_is_bounded(tmp_path, monkeypatch):
    """What was not used for longest goes first."""
    monkeypatch.setattr(calls, "SIZE", 25)
    for age, name in enumerate("abc"):
        (tmp_path / name).write_bytes(b"0123456789")
        os.utime(tmp_path / name, (age, age))
    calls.shrink(tmp_path)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["b", "c"]
