"""Says what of a machine hinders runs here, or makes them slower or less sure, and what to do about it."""
