"""Times the parts of a running engine beside their lower bound."""
