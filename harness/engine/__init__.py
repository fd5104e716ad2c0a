"""One step, one round, one slot: everything that runs while the clock runs.

Knows the sampling core and the drafters, no settings, files or profiles.
"""
