"""The local engine: slots, rounds, commit. It knows the sampling core and the drafters, not configurations or files."""
