"""Experiment trackers: one module each, named in `harness.config.tracker.TrackerKind`."""
