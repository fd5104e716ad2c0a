"""The cases of each preset: the headline; one factor at a time around the largest of its cases; rows of noise, by which
kernels are often compared."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches

from harness.checks.kernel_bench.case import Acceptance, Case, Dtype, RowKind, Truncation, Work
from harness.checks.kernel_bench.config import BenchConfig, Preset
from kernels.contract import DraftSampling, SiblingDraws, VerificationMethod
from kernels.methods import TreeMethod

Method = VerificationMethod
CENTRE = Case()
TREE = Case(
    num_requests=64, width=32, method=TreeMethod.recursive, tree="4-1-2-1-1", keeps_statistics=False, temperature=1.0
)
DRAW = Case(work=Work.draw, width=0, vocab_size=151_936)
HEADLINE_REQUESTS = (16, 64, 256)
REQUESTS = (1, 4, 16, 64, 256, 1024)
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8)
ODD = 128_255
VOCABULARIES = (32_000, 50_257, ODD, ODD + 1, 151_936, 262_144)
TEMPERATURES = (0.0, 0.7, 1.0)


def cases_of(preset: Preset) -> tuple[Case, ...]:
    """The cases in the order in which they are run, each once."""
    made = {Preset.smoke: _smoke, Preset.headline: headline_cases, Preset.full: _full, Preset.noise: _noise}
    return tuple(dict.fromkeys(made[preset]()))


def chosen_cases(config: BenchConfig) -> list[Case]:
    """What the settings ask for.

    Raises:
        ValueError: no case has such a name.
    """
    if config.case:
        return [case_named(config.case)]
    cases = cases_of(config.preset)
    chosen = [case for case in cases if config.cases in case.name]
    if not chosen:
        names = "; ".join(case.name for case in cases)
        raise ValueError(f"--cases {config.cases!r}: expected part of a name of a case, found none; there are {names}")
    return chosen


def case_named(name: str) -> Case:
    """The case of any preset that has exactly this name.

    Raises:
        ValueError: none has; names the nearest.
    """
    found = {case.name: case for preset in Preset for case in cases_of(preset)}
    if name not in found:
        nearest = get_close_matches(name, found, n=3, cutoff=0.0)
        raise ValueError(f"--case {name!r}: expected the name of a case, found none; the nearest: {'; '.join(nearest)}")
    return found[name]


def headline_cases() -> list[Case]:
    """Those that tables and peers are about."""
    cases = [replace(CENTRE, num_requests=count, method=method) for method in (Method.probabilistic, Method.block)
             for count in HEADLINE_REQUESTS]  # fmt: skip
    cases += [replace(CENTRE, num_requests=count, truncation=Truncation.top_p) for count in HEADLINE_REQUESTS]
    cases += [of_method(CENTRE, Method.strict), replace(CENTRE, truncation=Truncation.top_k)]
    cases += [replace(DRAW, num_requests=count) for count in HEADLINE_REQUESTS]
    cases += [TREE]
    # the target rows of 256 requests: what it costs to truncate them, with a draw on top
    rows = replace(DRAW, num_requests=1024, vocab_size=128_256)
    return [*cases, rows, *(replace(rows, truncation=each) for each in (Truncation.top_p, Truncation.top_k))]


def of_method(case: Case, method: VerificationMethod) -> Case:
    """The same under another method, with what the method must have: temperature 0, or coupled drafts."""
    changed = replace(case, method=method)
    if method is Method.greedy:
        return replace(changed, temperature=0.0)
    if method is Method.coupled:
        return replace(changed, draft_sampling=DraftSampling.coupled)
    return changed


def _full() -> list[Case]:
    cases = headline_cases()
    cases += [replace(CENTRE, num_requests=count) for count in REQUESTS]
    cases += [replace(CENTRE, width=width) for width in WIDTHS]
    cases += [replace(CENTRE, width=width, method=Method.block) for width in (1, 5, 8)]
    cases += [replace(CENTRE, vocab_size=size) for size in VOCABULARIES]
    # rows that begin anywhere
    cases += [replace(CENTRE, num_requests=count, method=method, vocab_size=ODD) for count in (16, 256) for method in
              (Method.probabilistic, Method.block)]  # fmt: skip
    cases += [replace(CENTRE, truncation=Truncation.top_p, vocab_size=ODD)]
    cases += [replace(DRAW, num_requests=count, vocab_size=size) for count in (16, 256) for size in (ODD, ODD + 1)]
    cases += [replace(CENTRE, num_requests=count, row_gap=1) for count in (16, 256)]
    # what another engine gives, which keeps no statistics
    cases += [replace(CENTRE, num_requests=count, keeps_statistics=False) for count in REQUESTS]
    cases += [replace(CENTRE, method=Method.block, keeps_statistics=False)]
    cases += [replace(CENTRE, keeps_statistics=False, vocab_size=ODD)]
    # few requests, and coupled noise
    cases += [replace(CENTRE, num_requests=count, method=Method.block) for count in REQUESTS]
    cases += [of_method(replace(CENTRE, num_requests=count), Method.coupled) for count in REQUESTS]
    cases += [replace(CENTRE, dtype=dtype) for dtype in Dtype]
    cases += [replace(CENTRE, temperature=temperature) for temperature in TEMPERATURES]
    cases += [replace(CENTRE, truncation=truncation) for truncation in Truncation]
    cases += [replace(CENTRE, truncation=each, rows=kind) for kind in (RowKind.peaked, RowKind.flat) for each in
              (Truncation.off, Truncation.top_p, Truncation.min_p)]  # fmt: skip
    cases += [replace(CENTRE, acceptance=each, method=method) for method in (Method.probabilistic, Method.block)
              for each in Acceptance]  # fmt: skip
    cases += [of_method(CENTRE, method) for method in Method]
    cases += [replace(CENTRE, method=method, draft_sampling=DraftSampling.greedy) for method in
              (Method.probabilistic, Method.block)]  # fmt: skip
    cases += [replace(DRAW, num_requests=count) for count in REQUESTS]
    cases += [replace(DRAW, vocab_size=size) for size in VOCABULARIES]
    cases += [replace(DRAW, dtype=dtype) for dtype in Dtype]
    cases += [replace(DRAW, temperature=temperature) for temperature in TEMPERATURES]
    cases += [replace(DRAW, truncation=truncation) for truncation in Truncation]
    cases += [replace(TREE, siblings=SiblingDraws.independent), replace(TREE, draft_sampling=DraftSampling.greedy)]
    cases += [replace(TREE, num_requests=count) for count in (1, 16, 256)]
    # penalties of texts of many distinct tokens
    cases += [replace(CENTRE, num_requests=count, edited_tokens=1000) for count in (16, 64, 256)]
    cases += [replace(CENTRE, edited_tokens=8000)]
    traversed = replace(TREE, method=TreeMethod.traversal)
    cases += [replace(TREE, method=TreeMethod.kseq, siblings=SiblingDraws.independent)]
    cases += [traversed, replace(traversed, num_requests=16), replace(traversed, draft_sampling=DraftSampling.greedy)]
    cases += [replace(TREE, temperature=temperature) for temperature in TEMPERATURES]
    cases += [replace(TREE, truncation=Truncation.top_p), replace(TREE, vocab_size=ODD)]
    return [*cases, *(replace(DRAW, work=Work.coupled_draw, num_requests=count) for count in (16, 256))]


def _noise() -> list[Case]:
    """Few requests, no statistics, coupled noise, rows that begin anywhere, and truncation, each at several sizes."""
    centre, drawn = replace(CENTRE, rows=RowKind.noise), replace(DRAW, rows=RowKind.noise)
    methods = Method.probabilistic, Method.block
    few = [1, 4, 16, 64]
    cases = [replace(centre, num_requests=count, method=method) for count in (*few, 256) for method in methods]
    cases += [replace(drawn, num_requests=count) for count in (1, 16, 256)]
    cases += [replace(centre, num_requests=count, keeps_statistics=False) for count in (*few, 256)]
    cases += [of_method(replace(centre, num_requests=count), Method.coupled) for count in (16, 256)]
    cases += [replace(drawn, work=Work.coupled_draw, num_requests=count) for count in (16, 256)]
    for count in (16, 256):
        cases += [replace(centre, num_requests=count, method=method, vocab_size=ODD) for method in methods]
        cases += [replace(drawn, num_requests=count, vocab_size=size) for size in (ODD + 1, ODD)]
        cases += [replace(centre, num_requests=count, row_gap=1)]
    cases += [
        replace(centre, num_requests=count, truncation=Truncation.top_p, rows=kind)
        for kind in (RowKind.noise, RowKind.flat)
        for count in (16, 64, 256)
    ]
    return cases + [replace(centre, truncation=each) for each in (Truncation.min_p, Truncation.top_k)]


def _smoke() -> list[Case]:
    """Every path once, small enough for the reference on a CPU."""
    small = Case(num_requests=8, vocab_size=1000)
    drawn = replace(small, work=Work.draw, width=0)
    return [
        small,
        replace(small, num_requests=2),
        replace(small, method=Method.block),
        replace(small, truncation=Truncation.top_p),
        replace(small, temperature=0.0, dtype=Dtype.float32),
        of_method(small, Method.coupled),
        replace(small, draft_sampling=DraftSampling.greedy),
        replace(TREE, num_requests=3, vocab_size=1000, width=6, tree="2-2"),
        replace(small, edited_tokens=50),
        replace(small, vocab_size=999, keeps_statistics=False, row_gap=2, rows=RowKind.flat),
        drawn,
        replace(drawn, work=Work.coupled_draw, vocab_size=999),
    ]
