"""Figures of results, one file per kind of figure, in one style. `kinds` lists them, `write` draws them all."""
