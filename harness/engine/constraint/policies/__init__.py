"""What is done about the answer tokens of the round in which reasoning ends, one policy a module.

In later rounds every policy with a grammar verifies under masks. Only that round is open: its drafts were proposed
while the grammar was off. Needs no torch: settings are read from here.
"""
