"""The home of SeveralTokens before version 0.2, for parsers that import it; goes with version 0.3."""

from harness.engine.constraint.parsers.markers import SeveralTokens

__all__ = ["SeveralTokens"]
