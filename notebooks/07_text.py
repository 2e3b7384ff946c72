# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Text: when does each layer of a classifier settle?
#
# In the solvable models the last layer of attention is learned first ([two layers](01_two_layers.ipynb)). Is it so in a network on text? Here are
# two layers of tied attention that sort questions into six classes, as in Fig. 3 of Troiani, Cui, Dandi, Krzakala, Zdeborová,
# ICML 2025 (arXiv 2502.00901). How far a layer is from its final weights is measured by
#
# $$\mathrm{similarity}_\ell(t)=\frac{\langle W_\ell(t),W_\ell(T)\rangle}{\|W_\ell(t)\|\,\|W_\ell(T)\|}.$$
#
# The questions are synthetic, templates over the classes of TREC; `text_network.load("train_5500.label")` reads the published
# files, for which the article takes AdamW with rate 5e-5 and 40 epochs. The network is in `text_network.py`, beside this
# notebook. Run time: half a minute on two cores.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import text_network

from jaxsmi.workbench import plotting

small = bool(os.environ.get("JAXSMI_SMALL"))  # small sizes, for tests
count, epochs = (240, 15) if small else (1200, 40)
key = jax.random.key(0)

# %% [markdown]
# ## 1. Questions as numbers
#
# A fifth of the questions is for testing; those whose text is also in the training set are left out.

# %%
labels, texts = text_network.synthetic(count)
print(*zip(labels[:4], texts[:4], strict=True), sep="\n")
classes = sorted(set(labels))
learned = set(texts[: count * 4 // 5])
parts = {
    "train": range(count * 4 // 5),
    "test": [n for n in range(count * 4 // 5, count) if texts[n] not in learned],
}
vocabulary = text_network.vocabulary_of(learned)
data = {
    name: (
        jnp.asarray(text_network.encode([texts[n] for n in part], vocabulary, 12)),
        jnp.asarray([classes.index(labels[n]) for n in part]),
    )
    for name, part in parts.items()
}

# %% [markdown]
# ## 2. Training

# %%
network = text_network.Classifier(len(vocabulary) + 2, len(classes), key=key)
network, layers = text_network.fit(
    network, *data["train"], key=key, epochs=epochs, optimizer=optax.adamw(5e-4)
)
accuracy = {
    name: float(np.mean(np.argmax(jax.vmap(network)(ids), axis=-1) == known))
    for name, (ids, known) in data.items()
}
print({name: round(value, 3) for name, value in accuracy.items()})

# %% tags=["remove-cell"]
assert accuracy["test"] > (0.6 if small else 0.9)  # chance is 1/6

# %% [markdown]
# ## 3. When the layers settle
#
# The epoch at which a layer is half-way from its first similarity to one.

# %%
similarity = np.asarray(text_network.similarity(layers))
half = 0.5 * (1.0 + similarity[0])
settled = [
    float(np.interp(h, s, np.arange(epochs + 1))) for h, s in zip(half, similarity.T, strict=True)
]
with plotting.style():
    fig, ax = plt.subplots(figsize=(5, 3), layout="constrained")
    for p in range(2):
        look = {"color": plotting.colour(p), **plotting.line(p)}
        ax.plot(
            similarity[:, p], label=f"layer {p + 1}, half-way at epoch {settled[p]:.1f}", **look
        )
    ax.set(xlabel="epoch", ylabel="cosine similarity with the end")
    ax.legend()
    plt.show()
np.testing.assert_allclose(similarity[-1], 1.0, atol=1e-5)

# %% tags=["remove-cell"]
assert np.all(np.diff(similarity[epochs // 2 :], axis=0) > -1e-3)  # they settle
