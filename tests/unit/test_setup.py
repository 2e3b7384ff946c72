"""Settings for a whole process: in fresh processes, as they start a device."""

import json
import os
import subprocess
import sys

import pytest

import jaxsmi as smi

SCRIPT = """
import json, os, sys, warnings
import jax, jaxsmi as smi
assert jax.config.jax_compilation_cache_dir is None  # importing sets no flag
assert not jax.config.jax_enable_x64
with warnings.catch_warnings(record=True) as caught:
    {call}
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
heard = []
jax.monitoring.register_event_listener(lambda event, **_: heard.append(event))
answer = jax.jit(lambda x: jax.numpy.sin(x) @ x)(jax.numpy.arange(3.0))
hits = heard.count("/jax/compilation_cache/cache_hits")
said = [(w.filename, str(w.message)) for w in caught]
flags, folder = os.environ.get("XLA_FLAGS", ""), jax.config.jax_compilation_cache_dir
print(json.dumps(dict(hits=hits, dtype=str(answer.dtype), said=said, flags=flags, folder=folder)))
"""


def process(call, **environment):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    kept |= {"JAX_PLATFORMS": "cpu"} | environment
    command = [sys.executable, "-c", SCRIPT.replace("{call}", call)]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_precision_flags_and_cache_of_a_process(tmp_path):
    first, second = (process(f"smi.setup(cache={str(tmp_path)!r})") for _ in range(2))
    assert first["dtype"] == "float64"
    assert "xla_cpu_use_fusion_emitters=false" in first["flags"]
    assert first["hits"] == 0 < second["hits"]
    assert not first["said"]


def test_a_users_own_settings_stay(tmp_path):
    flags = "--xla_cpu_use_fusion_emitters=true"
    theirs = str(tmp_path / "theirs")
    call = f"smi.setup(x64=False, cache={str(tmp_path / 'ours')!r})"
    call = f"jax.config.update('jax_compilation_cache_dir', {theirs!r}); {call}"
    answer = process(call, XLA_FLAGS=flags)
    assert answer["flags"].startswith(flags)
    assert answer["flags"].count("fusion_emitters") == 1
    assert answer["folder"] == theirs
    assert answer["dtype"] == "float32"


def test_a_jaxlib_of_unknown_flags_is_warned_of_and_gets_none():
    old = "importlib.metadata.version = lambda name: '0.99.1'; "
    [(file, sentence)] = process(f"import importlib.metadata; {old}smi.setup()")["said"]
    assert file == "<string>"
    assert sentence.startswith("quick_compile has no effect with jaxlib 0.99.1")
    quiet = process(f"import importlib.metadata; {old}smi.setup(quick_compile=False)")
    assert not quiet["said"]
    assert "xla_cpu_use_fusion_emitters" not in quiet["flags"]


def test_float32_is_warned_of_at_the_users_line_unless_asked_for():
    use = "smi.priors.Rademacher().overlap(jax.numpy.eye(1))"  # by way of frames of JAX
    [(file, sentence)] = process(use)["said"]
    assert file == "<string>"  # the script
    assert "need float64, which is off. Call smi.setup()" in sentence
    assert not process(f"smi.setup(x64=False); {use}")["said"]


@pytest.mark.parametrize("wrong", [{"x64": 1}, {"quick_compile": None}, {"cache": 3}])
def test_a_wrong_argument_is_named(wrong):
    with pytest.raises(ValueError, match=rf"^{next(iter(wrong))}: got "):
        smi.setup(**{"quick_compile": False} | wrong)
