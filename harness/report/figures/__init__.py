"""Figures of results, one file per kind, in one style: `kinds` lists them, `write` draws them all."""
