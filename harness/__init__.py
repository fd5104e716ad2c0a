"""The harness: packages only. harness/README.md is the map, tests/test_layers.py holds their order."""
