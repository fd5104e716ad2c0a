"""What other methods would have accepted of recorded drafts, without sampling noise.

    rules -> estimators ( terms ) -> replayed ( sums per prompt, estimates ) -> tables, figure -> write

Reads records and their terms; runs no models.
"""
