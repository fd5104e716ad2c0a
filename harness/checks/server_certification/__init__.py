"""Certification of a served engine from outside: does it emit the law of a target that is known here?

The target's next-token law is computed on this machine; the server is asked many short requests, and the joint law of
their first tokens is compared with the exact one. Knows no drafter and no record of a run.
"""
