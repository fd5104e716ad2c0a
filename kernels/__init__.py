"""Sampling core of Rejection Lab: random streams, draws and verification. Knows nothing of models, text or settings.

An unrelated distribution on PyPI is called `kernels` too and owns the same import name; libraries probe for it. The two
cannot live on one path, so importing this package says what to do when the other one is installed. Under another name,
as the distribution rejection-lab-core has it, it lives beside that one; so files here import one another relatively.
Nothing else happens here: neither torch nor triton is imported, and there is no `__version__`, which is how the probes
tell the two apart.
"""

import importlib.metadata as _metadata


def _refuse_the_other_package() -> None:
    try:
        other = _metadata.distribution("kernels")
    except _metadata.PackageNotFoundError:
        return
    raise ImportError(
        "expected `kernels` to be only Rejection Lab's sampling core; found the unrelated distribution "
        f"kernels {other.metadata['Version']}, which has the same import name. Run: pip uninstall kernels "
        "(and, where Rejection Lab is installed beside it, install rejection-lab again)"
    )


if __name__ == "kernels":
    _refuse_the_other_package()
