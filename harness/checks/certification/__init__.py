"""Certification: does a sampling core emit the target's law, over several rounds, with its own drafts and streams?

Toy requests whose exact law is known run through a subject (see subject); the joint law of their first tokens is
tested case by case, beside controls that must fail. Knows no model, prompt or record.
"""
