"""One adapter per engine, in its own file; no adapter knows another."""
