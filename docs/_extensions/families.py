"""The order of the gallery: figures of one family of models stand together."""

FAMILIES = (
    "deep", "spectral", "input", "risk", "matrix", "hardmax", "trained", "icl", "bilinear",
    "quadratic", "descent", "sgd",
)  # fmt: skip


class FamilyOrder:
    """The sort key of sphinx-gallery: the family that a file name begins with, then the name."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, name):
        return FAMILIES.index(name.split("_")[0].removesuffix(".py")), name
