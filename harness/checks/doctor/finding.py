"""One thing that was looked at, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Weight(Enum):
    """What a finding means for runs."""

    fine = "ok"
    remark = "note"
    """Something cannot be done, or is slower than it could be."""
    problem = "PROBLEM"
    """Runs fail, or what they measure is not to be trusted."""


@dataclass(frozen=True)
class Finding:
    """What was found."""

    subject: str
    """What was looked at, in a word or two."""
    found: str
    """One sentence without its end."""
    weight: Weight = Weight.fine
    advice: str = ""
    """What to do; empty where nothing is to be done."""


def remark(subject: str, found: str, advice: str = "") -> Finding:
    """Something that cannot be done, or is slower than it could be."""
    return Finding(subject, found, Weight.remark, advice)


def problem(subject: str, found: str, advice: str) -> Finding:
    """Something that has to be put right."""
    return Finding(subject, found, Weight.problem, advice)
