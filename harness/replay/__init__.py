"""Replay: what every verification method would accept of the drafts that one run recorded, without sampling noise.

    rules -> estimators ( terms ) -> replayed ( sums per prompt, estimates ) -> tables, figure -> write

It reads records and their terms; it does not run models.
"""
