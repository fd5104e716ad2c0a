"""What the kernels ask of a verification method: Triton functions that they call, chosen at compile time.

A kernel takes the hooks as one compile-time constant; a hook that is None costs nothing. `parameters` points at the
float64 values that kernels.methods.rule.Rule.values gives. Draft tokens go through a hook one at a time or several at
once: of `index`, tokens and numbers all are scalars, or all are vectors.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from .own import OwnMethod
from .rule import Rule

if TYPE_CHECKING:
    from . import Method

NONE, ENTROPY, OWN = "none", "entropy", "own"
FRESH, COUPLED, SHARED = "fresh", "coupled", "shared"


@dataclass(frozen=True, eq=False)
class Hooks:
    """The hooks of a method: one of `limit`, `test`, `count`, or the noise of coupled drafts, decides what is accepted.

    One object for each method: a launch finds its compiled kernel by the object's identity, and a later process by the
    sources of all hooks, so that an edited hook is compiled again.

    Raises:
        ValueError: hooks are missing or contradict one another.
    """

    limit: Any = None
    """(parameters, index, draft_prob, uniform_number) -> float64 that p(X) must exceed to pass; draft_prob is 1 for a
    one-hot proposal. With it few requests are decided in the second pass, without waiting for the row's sum."""
    test: Any = None
    """(parameters, index, target_prob, draft_prob, uniform_number, statistic) -> bool, whether the token passes."""
    statistic: str = NONE
    """What `test` and `may_defer` need of the whole target row: ENTROPY in nats, summed while the row is read; OWN, by
    `of_chunks` and `of_row`."""
    of_chunks: Any = None
    """(target, row_logits, mask, parameters, chunk_maxima, maximum, normalizer, temperature, TILE, CHUNK, GROUP,
    CHUNKS_PADDED) -> float64, of a row that nothing is cut from."""
    of_row: Any = None
    """(target, row_logits, mask, parameters, threshold, maximum, normalizer, temperature, LANES, GROUP) -> float64, of
    a row that is cut below the threshold."""
    may_defer: Any = None
    """(parameters, statistic) -> bool: a possible token that fails is left OPEN for `revise`."""
    revise: Any = None
    """(parameters, judged, columns, count, WIDTH_PADDED) -> judged, once all draft tokens of a request are tested."""
    count: Any = None
    """(parameters, columns, target_logprobs, draft_logprobs, uniform_numbers, num_usable, one_hot) -> (number accepted,
    bit mask of the positions whose residual mass must be summed to settle it, vector of log P after each number), where
    draft tokens are not tested one by one; see kernels.methods.block_device."""
    mass_passes: Any = None
    """(parameters, uniform_number, mass, ratio) -> bool: the test of such a position, once its mass is known."""
    left: Any = None
    """(parameters, weight) -> float32 weight that a rejected one-hot proposal keeps when the next token is drawn; None:
    0."""
    residual: Any = None
    """(parameters, target_weight, draft_weight) -> float32 weight of a token after a rejection, p and q in one unit;
    None: [p - q]+."""
    uniform: Any = None
    """(seed, position, round) -> float64 number that decides about a draft token; None: the accept stream."""
    noise: str = FRESH
    """What the next token is drawn with: a uniform number of its own; COUPLED, the noise of coupled drafts on the
    target row, whose winner is what a draft token must equal; SHARED, that noise on the weights of the next token."""
    greedy_only: bool = False
    """From the traits: above temperature 0 nothing passes, and the request is flagged."""
    is_own: bool = False
    """Of a rule of the user's own: at temperature 0 the argmax alone passes, and no test lets an impossible token pass,
    whatever the hooks say. The built-in ones come to that by themselves."""

    def __post_init__(self) -> None:
        decides = [name for name in ("limit", "test", "count") if getattr(self, name) is not None]
        decides += ["noise=COUPLED"] if self.noise == COUPLED else []
        if len(decides) != 1:
            raise ValueError(
                "Hooks: expected one of limit, test, count, noise=COUPLED, which decides about draft tokens, found "
                f"{', '.join(decides) or 'none of them'}"
            )
        for name, ours in (("statistic", (NONE, ENTROPY, OWN)), ("noise", (FRESH, COUPLED, SHARED))):
            if getattr(self, name) not in ours:
                raise ValueError(
                    f"Hooks: expected {name} to be one of {', '.join(ours)}, found {getattr(self, name)!r}"
                )
        together = {
            "count and mass_passes": (self.count, self.mass_passes),
            "may_defer and revise": (self.may_defer, self.revise),
            "of_chunks and of_row, with statistic=OWN": (
                self.of_chunks,
                self.of_row,
                True if self.statistic == OWN else None,
            ),
        }
        for words, hooks in together.items():
            if len({hook is None for hook in hooks}) > 1:
                raise ValueError(f"Hooks: expected all of {words}, or none, found some")

    @property
    def needs_sums_alone(self) -> bool:
        """Draft tokens can be tested in one vector, before the sum of their target row is known."""
        plain = self.noise == FRESH and self.statistic == NONE and self.revise is None and self.uniform is None
        return plain and self.test is None

    @property
    def draws_otherwise(self) -> bool:
        """The next token has other weights than [p - q]+ and p without the rejected token."""
        return self.left is not None or self.residual is not None or self.count is not None

    @cached_property
    def cache_key(self) -> str:
        """Of the sources of all hooks; Triton's key of a compiled kernel on disk takes it."""
        parts = [common_key(getattr(self, field.name)) for field in fields(self)]
        return hashlib.sha256("-".join(parts).encode()).hexdigest()

    def __reduce__(self) -> Any:
        """Triton functions cannot be pickled: another process asks for the hooks of a method that has these."""
        return hooks_of, (_METHOD_WITH[self],)

    def __repr__(self) -> str:
        return f"hooks_{self.cache_key[:16]}"

    def mangle(self) -> str:
        """Part of the names of the functions that are compiled for it."""
        return repr(self)


_METHOD_WITH: dict[Hooks, Method] = {}
"""One of the methods that have these hooks."""


def common_key(value: Any) -> str:
    """The key that every process gives a Triton function in the cache of what is compiled; of another value its text.

    Triton takes in the constants that a callee uses only if the callee has a key by then, so that keys would depend on
    what the process has compiled before.
    """
    if not hasattr(type(value), "cache_key"):
        return str(value)
    if value.hash is None:
        for name in value.fn.__code__.co_names:
            callee = value.fn.__globals__.get(name)
            if isinstance(callee, type(value)) and callee is not value:
                common_key(callee)
    key: str = value.cache_key
    return key


@cache
def _with_traits(hooks: Hooks, greedy_only: bool, is_own: bool) -> Hooks:
    """One object for all methods that ask the same of the kernels, which then share what is compiled."""
    return replace(hooks, greedy_only=greedy_only, is_own=is_own)


def _draws_otherwise(kind: type[Rule]) -> bool:
    """Whether a rule on the reference core has weights of the next token that are not those of most rules."""
    return kind.emission is not Rule.emission or kind.scale is not Rule.scale


@cache
def _hooks(method: Method) -> Hooks | None:
    kind, traits = method.kind, method.traits
    hooks = kind.hooks()
    if hooks is None:
        return None
    expected = {
        "count": (hooks.count is not None, not traits.stops_at_first_failure),
        "may_defer and revise": (hooks.revise is not None, traits.defers),
        "noise other than FRESH": (hooks.noise != FRESH, traits.decided_by_noise),
        "uniform": (hooks.uniform is not None, kind.uniforms is not Rule.uniforms),
        "left, residual or count": (hooks.draws_otherwise, _draws_otherwise(kind)),
    }
    for words, (is_there, wanted) in expected.items():
        if is_there != wanted:
            raise ValueError(
                f"{kind.__qualname__}: expected hooks {'with' if wanted else 'without'} {words}, as its traits and its "
                "functions for the reference core say"
            )
    found = _with_traits(hooks, traits.greedy_only, isinstance(method, OwnMethod))
    _METHOD_WITH.setdefault(found, method)
    return found


def runs_on_kernels(method: Method) -> bool:
    """Whether a method has hooks.

    Raises:
        ValueError: they do not fit its traits.
    """
    return _hooks(method) is not None


def hooks_of(method: Method) -> Hooks:
    """What the kernels take for a method, the same object at every call.

    Raises:
        ValueError: it has no hooks, or they do not fit its traits.
    """
    found = _hooks(method)
    if found is None:
        raise ValueError(f"{method.value}: expected a rule with `hooks`, found none: only the reference core runs it")
    return found
