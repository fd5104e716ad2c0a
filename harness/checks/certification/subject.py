"""What certification asks of a sampling core, and how one is found: `--subject NAME` or `package.module:function`.

NAME is one of harness.checks.certification.implementations. The function is called with a torch.device and returns a
subject: an object with the four members of `Subject`. The data types are those of kernels.contract, which says what
every field holds; the rules are in kernels.random.streams and in the reference's docstrings. In short, a subject

- draws one token per row of raw logits with `draw` or `coupled_draw`, the proposal of the token at
  `streams.positions`, for the request with `streams.seeds` in its round `streams.rounds`;
- turns a round's drafts into output tokens with `verify`: the accepted ones, then one more, then -1;
- finds the target's rows in one of two layouts: packed, K_r + 1 rows of each request, request after request, none of a
  padded slot; or padded, exactly R * (K + 1) rows, those of request r from r * (K + 1) on, and after its K_r + 1 rows
  some that have no meaning and may be NaN. K is the width of `draft.token_ids`, K_r is `draft.num_draft_tokens`. The
  number of rows tells which (kernels/reference/target_rows.py); where both have as many, they are the same;
- leaves its inputs as they were: engines go on reading the logits, the drafts and the cache. A `verify` that writes
  into one of them is at fault; the first rounds of every case are checked on a CPU, nothing on a GPU;
- returns the types of kernels.contract themselves, every tensor of the shape that stands there;
- may ignore seeds, positions and rounds, and draw its random numbers in its own way: only the law is tested;
- gets for one request the position of the first token that the round may emit. A rejected position is drafted again in
  the next round, with another `rounds`.

The draft logits lie in a persistent cache of slots, found through `draft.idx_mapping`; the slots are used again by
other requests, and places that were not drafted hold stale or NaN values. A subject that cannot do something says so in
an attribute `features`; what it lacks is listed in the report and never skipped in silence. Without the attribute it
promises everything but `row_stats`, `masks` and `edits`.

A whole subject, in my_core.py, with the reference in the place of the code to test:

    from harness.checks.certification.subject import Features, Functions
    from kernels.contract import VerificationResult, VerificationMethod
    from kernels.reference import coupled, draw, verify

    def my_verify(target_logits, draft, sampling, verification, streams):
        found = verify.verify(target_logits, draft, sampling, verification, streams)
        return VerificationResult(found.token_ids, found.num_accepted, found.invalid)

    def my_core(device):
        can = Features(methods=frozenset({VerificationMethod.block}), padded_rows=False)
        return Functions("my core", my_verify, draw.draw, coupled.coupled_draw, can)

Then, from the folder of my_core.py, or with it on PYTHONPATH:

    rejection-lab certify --subject my_core:my_core

A package whose one function drafts, calls both models and verifies has no `draw` and `verify` of its own: a function
of one round, `run_round`, becomes a subject by `whole_rounds`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from harness.checks.certification.implementations import NAMED
from harness.config.own_code import import_place, note_own_file, own_place
from harness.config.schema import SettingsError
from kernels.contract import DraftSampling, Drawn, Verification, VerificationMethod, VerificationResult
from kernels.core import Core, core_for, reference_core
from kernels.methods import Method, TreeMethod


@dataclass(frozen=True)
class Features:
    """What a subject can do."""

    methods: frozenset[Method] = frozenset(VerificationMethod)
    """Those of kernels.methods.TreeMethod get trees of drafts, `Draft.parents`, and return a path."""
    draft_samplings: frozenset[DraftSampling] = frozenset(DraftSampling)
    drafts: frozenset[tuple[VerificationMethod, DraftSampling, bool]] | None = None
    """Of the ways to draft and verify, those that there are: method, draft sampling, and whether the draft logits are
    kept; None is all."""
    dtypes: frozenset[torch.dtype] = frozenset({torch.float32, torch.bfloat16, torch.float16})
    truncation: bool = True
    """top-k, top-p and min-p."""
    narrow_draft: bool = True
    """A draft vocabulary smaller than the target's."""
    ragged: bool = True
    """Requests with different numbers of draft tokens, none among them, in one batch."""
    padded_slots: bool = True
    """Rows of the batch with num_draft_tokens == -1."""
    padded_rows: bool = True
    """Target rows in the padded layout, too; without it they are always packed."""
    row_stats: bool = False
    """`draw` takes a keyword row_stats and fills it, `verify` reads Draft.row_stats."""
    masks: bool = False
    """`verify`, `draw` and `coupled_draw` take a keyword mask, `verify` reads Draft.mask."""
    edits: bool = False
    """It has `edit_logits`, as kernels.edit_logits.edit_logits without `tally` and `parents`: penalties along a
    draft."""
    own_methods: bool = False
    """`verify` runs every kernels.methods.OwnMethod, as the reference does."""
    own_hooks: bool = False
    """`verify` runs those with hooks, as the kernels do."""
    whole_rounds: bool = False
    """The subject's code drafts and verifies in one call that gets the models: `run_round` is called in the place of
    `draw` and `verify`."""
    remark: str = ""
    """What a reader of the report should know about the subject."""


class Subject(Protocol):
    """A sampling core under test."""

    @property
    def name(self) -> str:
        """For the report."""

    @property
    def verify(self) -> Callable[..., VerificationResult]:
        """As kernels.reference.verify.verify; a mask is given to those that say so in `features`, here and below."""

    @property
    def draw(self) -> Callable[..., Drawn]:
        """As kernels.reference.draw.draw; so are `row_stats`."""

    @property
    def coupled_draw(self) -> Callable[..., Drawn]:
        """As kernels.reference.coupled.coupled_draw."""


@dataclass(frozen=True)
class ModelRound:
    """What a subject of whole rounds is given: one round of one request."""

    target: Callable[[Tensor], Tensor]
    """[1, n] int64 token ids -> [1, n, V] float32 logits of the token after each. The result is not to be changed."""
    draft: Callable[[Tensor], Tensor]
    """The drafter, likewise."""
    token_ids: Tensor
    """[1, n] int64, the context: a prompt and what the request has emitted."""
    num_draft_tokens: int
    temperature: float
    verification: Verification


class EmittedTokens(NamedTuple):
    """What a whole round gave."""

    token_ids: list[int]
    """Of the output, at least one and at most num_draft_tokens + 1."""
    num_accepted: int
    """Draft tokens among them, as the subject counts them."""


RunRound = Callable[[ModelRound], EmittedTokens]


@dataclass(frozen=True)
class Functions:
    """A subject put together from functions."""

    name: str
    verify: Callable[..., VerificationResult]
    draw: Callable[..., Drawn]
    coupled_draw: Callable[..., Drawn]
    features: Features = field(default_factory=Features)
    draw_children: Callable[..., Tensor] | None = None
    """As kernels.reference.draw_children.draw_children, which draws the trees of a subject that has none."""
    run_round: RunRound | None = None
    """Of a subject of whole rounds."""
    edit_logits: Callable[..., None] | None = None
    """See Features.edits."""


def whole_rounds(name: str, run_round: RunRound, features: Features) -> Functions:
    """A subject that runs whole rounds.

    Args:
        name: for the report.
        run_round: one round of one request; draws its random numbers from torch's global generator.
        features: methods, ways to draft and the remark; a round has a temperature and two models of one vocabulary.
    """

    def has_none(*arguments: object, **named: object) -> Any:
        raise ValueError(f"{name} runs whole rounds: expected run_round, found a call with rows of logits")

    can = Features(
        methods=features.methods,
        draft_samplings=features.draft_samplings,
        drafts=features.drafts,
        dtypes=frozenset({torch.float32}),
        truncation=False,
        narrow_draft=False,
        ragged=False,
        padded_slots=False,
        padded_rows=False,
        whole_rounds=True,
        remark=features.remark,
    )
    return Functions(name, has_none, has_none, has_none, can, run_round=run_round)


def _as_subject(core: Core) -> Functions:
    is_reference = core.name == "reference"
    return Functions(
        core.name,
        core.verify,
        core.draw,
        core.coupled_draw,
        Features(
            methods=frozenset([*VerificationMethod, *TreeMethod]),
            row_stats=True,
            masks=True,
            edits=True,
            own_methods=is_reference,
            own_hooks=not is_reference,
        ),
        core.draw_children,
        edit_logits=core.edit_logits,
    )


def project_core(device: torch.device) -> Functions:
    """What the engine runs on this device: Triton on CUDA, the reference elsewhere."""
    return _as_subject(core_for(device))


def reference(device: torch.device) -> Functions:
    """The executable specification, whatever the device."""
    return _as_subject(reference_core())


MEMBERS = ("name", "verify", "draw", "coupled_draw")


def features_of(subject: Subject) -> Features:
    """What the subject says it can do."""
    found = getattr(subject, "features", Features())
    if not isinstance(found, Features):
        raise ValueError(
            f"{subject.name}.features: expected a harness.checks.certification.subject.Features, found {found!r}"
        )
    return found


def load_subject(path: str, device: torch.device) -> Subject:
    """Import and call the function that makes a subject.

    Args:
        path: `package.module:function`, or a name of harness.checks.certification.implementations.
        device: passed on.

    Raises:
        SettingsError: the path cannot be followed, its function raises an error, or what it makes is not a subject.
    """
    path = NAMED.get(path, path)
    module_name, colon, function_name = path.partition(":")
    if not (module_name and colon and function_name):
        raise SettingsError(f"--subject: expected {', '.join(NAMED)} or package.module:function, found {path!r}")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise SettingsError(
            f"--subject: cannot import {module_name!r} ({type(error).__name__}: {error}{import_place(error)}); Python "
            "looks for it from the current folder and in PYTHONPATH"
        ) from error
    note_own_file(getattr(module, "__file__", None))
    function = getattr(module, function_name, None)
    if not callable(function):
        raise SettingsError(f"--subject: expected a function {function_name!r} in {module_name}, found none")
    subject = _made(path, function, device)
    missing = [name for name in MEMBERS if not hasattr(subject, name)]
    if missing:
        raise SettingsError(
            f"--subject: expected {path} to return an object with {', '.join(MEMBERS)}; it lacks "
            f"{', '.join(missing)} (see harness/checks/certification/subject.py)"
        )
    for name in MEMBERS[1:]:
        if not callable(getattr(subject, name)):
            raise SettingsError(f"--subject: expected {name} of what {path} returns to be a function")
    return subject


def _made(path: str, function: Callable[[torch.device], Subject], device: torch.device) -> Subject:
    try:
        return function(device)
    except SettingsError:
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}{own_place(error)}".split())
        raise SettingsError(f"--subject: {path} raised {text}; --debug shows where") from error
