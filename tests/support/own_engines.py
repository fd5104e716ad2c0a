"""A server that is no part of the harness, as a user would name it: server=tests.support.own_engines:Mine."""

from dataclasses import dataclass

from harness.backends.server.adapters.plain import Plain


@dataclass(frozen=True)
class Mine(Plain):
    """Answers as a plain one, and has a setting of its own."""

    flavour: str = "sweet"
    """Of its answers."""
