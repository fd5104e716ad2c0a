"""Certification: does a sampling core emit the target's law, over several rounds, with its own drafts and streams?

A subject (see subject) plays toy requests whose exact law is known; the joint law of each request's first tokens is
tested cell by cell, beside controls that must fail. Knows no model, prompt or record.
"""
