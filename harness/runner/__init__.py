"""Runs the cells of a plan in turns and writes them; `run` does so from overrides, for notebooks."""

from harness.runner.whole_run import run

__all__ = ["run"]
