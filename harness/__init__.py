"""The harness: packages only. harness/README.md is the map, tests/project/test_layers.py holds their order."""
