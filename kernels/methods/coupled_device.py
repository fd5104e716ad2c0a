"""The coupled method on the device: the row's winner under the noise is what a draft token must equal."""

from __future__ import annotations

from .hooks import COUPLED, Hooks

HOOKS = Hooks(noise=COUPLED)
