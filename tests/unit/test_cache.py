"""Compiled programs kept on disk: shared by processes, bounded, and only where somebody asks."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxsmi.core import cache
from jaxsmi.workbench.processes import processes

SCRIPT = """
import json, jax
from jaxsmi.core import cache
assert jax.config.jax_compilation_cache_dir is None  # importing sets no flag
folder = cache.keep_programs()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
heard = []
jax.monitoring.register_event_listener(lambda event, **_: heard.append(event))
answer = float(jax.jit(lambda x: jax.numpy.sin(x) @ x)(jax.numpy.arange(3.0)))
hits = heard.count("/jax/compilation_cache/cache_hits")
print(json.dumps({"folder": folder and str(folder), "answer": answer, "hits": hits}))
"""


@pytest.fixture
def nothing_set(monkeypatch):
    """JAX as it is before anybody speaks of a cache, and afterwards as it was."""
    before = {name: getattr(jax.config, name) for name in cache.SETTINGS}
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    yield monkeypatch
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def process(folder):
    """A process that keeps its programs there."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    environment |= {cache.VARIABLE: str(folder), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=environment, stdout=subprocess.PIPE, text=True
    )


def answer(running):
    """What a process printed."""
    out, _ = running.communicate(timeout=120)
    assert running.returncode == 0
    return json.loads(out)


@pytest.mark.slow
def test_processes_share_their_programs(tmp_path):
    """Two at once, and one after them, which compiles nothing of what they did."""
    together = [process(tmp_path), process(tmp_path)]
    first, second = map(answer, together)
    third = answer(process(tmp_path))
    assert first["folder"] == second["folder"] == str(tmp_path)
    assert first["answer"] == second["answer"] == third["answer"]
    assert third["hits"] > 0
    assert list(tmp_path.glob("*-cache"))


@pytest.mark.parametrize("word", ["off", "OFF"])
def test_off_means_off(nothing_set, word):
    nothing_set.setenv(cache.VARIABLE, word)
    assert cache.keep_programs() is None
    assert jax.config.jax_compilation_cache_dir is None


def test_a_setting_of_jax_is_left_alone(nothing_set, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    size = jax.config.jax_compilation_cache_max_size
    assert cache.keep_programs(tmp_path / "ours") == tmp_path / "theirs"
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "theirs")
    assert jax.config.jax_compilation_cache_max_size == size
    assert not (tmp_path / "ours").exists()


def test_it_lies_among_the_caches_of_the_user(nothing_set, tmp_path):
    nothing_set.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.keep_programs() == tmp_path / "jaxsmi"
    assert (tmp_path / "jaxsmi").stat().st_mode & 0o077 == 0  # what lies there is run


def test_a_folder_that_cannot_be_made(nothing_set, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        cache.keep_programs(tmp_path / "file" / "cache")
    nothing_set.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cache.keep_programs() is None  # nobody asked for this one


def test_its_size_is_bounded(nothing_set, tmp_path):
    """The bound is that of all programs together, and holds while more of them come."""
    nothing_set.setattr(cache, "SIZE", 12_000)
    cache.keep_programs(tmp_path)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    written = set()
    for power in range(2, 8):
        jax.jit(lambda x, power=power: jnp.sum(jnp.cos(x) ** power))(jnp.arange(3.0))
        present = list(tmp_path.glob("*-cache"))
        written |= {file.name for file in present}
        assert sum(file.stat().st_size for file in present) <= 12_000
    assert len(written) > len(present)  # some had to go


@pytest.mark.slow
def test_workers_keep_theirs_in_the_same_place(nothing_set, tmp_path):
    """A process that works for this one is told by it, not by the environment."""
    nothing_set.setenv(cache.VARIABLE, "off")
    cache.keep_programs(tmp_path)
    with processes(1) as pool:
        assert pool.submit(cache.keep_programs).result() == tmp_path
