"""What pyproject.toml cannot say: conf/ becomes part of the installed package, and training does not.

In a checkout, and in an editable install of one, the settings are read from conf/ at the top.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CONF = Path("conf")
TRAINING = ("experiments", "train_zoo")
"""The command that trains the built-in models: its package is not installed."""


class BuildWithConf(build_py):
    """Copies conf/ into harness/, where `harness.config.schema` looks first."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.copy_tree(str(CONF), str(Path(self.build_lib) / "harness" / CONF))

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        return [item for item in found if item[:2] != TRAINING]

    def get_source_files(self) -> list[str]:
        """Those of a source distribution, from which a wheel can be built too."""
        return [*super().get_source_files(), *map(str, CONF.rglob("*.yaml"))]


setup(cmdclass={"build_py": BuildWithConf})
