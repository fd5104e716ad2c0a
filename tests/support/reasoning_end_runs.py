"""Toy requests whose reasoning ends and a grammar begins, as the engine plays them, and what of them is compared."""

from collections import Counter
from dataclasses import replace

from msgspec import structs

from harness.engine.constraint.parsers.markers import NoReasoning, OneToken, SeveralTokens
from harness.engine.constraint.parsers.outside_code_block import OutsideCodeBlock
from harness.engine.slots import MAX_ENDING_TOKENS
from kernels.contract import DraftSampling, VerificationMethod
from tests.support.toy_grammar import MARKER, grammar_state_of
from tests.support.toy_markov import toy_engine, toy_requests, transitions

Method = VerificationMethod
VOCAB_SIZE = 4
NUM_REQUESTS = 25


class UnknownEnding(OneToken):
    """A parser that does not state how reasoning ends."""

    ending = ()


PARSERS = {
    "one token": lambda: OneToken(MARKER),
    "two tokens": lambda: SeveralTokens((1, MARKER)),
    "three tokens, two alike": lambda: SeveralTokens((2, 2, 3)),
    "longer than the device looks": lambda: SeveralTokens((2,) * MAX_ENDING_TOKENS + (3,)),
    "not in a code block": lambda: OutsideCodeBlock(OneToken(MARKER), {2: "```"}),
    "nothing known of the ending": lambda: UnknownEnding(MARKER),
    "no reasoning": NoReasoning,
}


def play(
    grammar_states,
    num_tokens,
    *,
    method=Method.probabilistic,
    drafts=DraftSampling.sampled,
    num_slots=7,
    seed=12,
    **options,
):
    """Every round of every request: its tokens, those that counted, why it was cut; and why the request ended."""
    engine = toy_engine(
        transitions(VOCAB_SIZE, seed),
        transitions(VOCAB_SIZE, 19),
        method,
        drafts,
        num_speculative_tokens=num_tokens,
        max_new_tokens=options.pop("max_new_tokens", 24),
        num_slots=num_slots,
        eos_token_ids=options.pop("eos_token_ids", frozenset()),
        constrained=True,
        **options,
    )
    requests = [
        replace(item, grammar_state=grammar_state)
        for item, grammar_state in zip(toy_requests(len(grammar_states)), grammar_states, strict=True)
    ]
    run = engine.run(requests, lambda record: None)
    assert run.num_invalid == 0
    return sorted(run.requests, key=lambda item: int(item.prompt_id))


def without_time(records):
    """What must not depend on how steps are launched."""
    rounds = [
        [
            structs.replace(item, arrival_s=0.0, share_s=0.0, host_us=0.0, is_whole=None, num_held_steps=0)
            for item in record.rounds
        ]
        for record in records
    ]
    return [
        (record.output_token_ids, record.finish_reason, record.num_reasoning_tokens, round_)
        for record, round_ in zip(records, rounds, strict=True)
    ]


def paths(records):
    """(rounds of steps that ran as a whole, rounds in which the host took part, steps deferred)."""
    kinds = Counter(item.is_whole for record in records for item in record.rounds)
    return kinds[True], kinds[False], sum(item.num_held_steps for record in records for item in record.rounds)


def boundary_places(records):
    """(draft tokens of the round in which reasoning ended, tokens of it up to the marker)."""
    found = set()
    for record in records:
        start = 0
        for item in record.rounds:
            if record.num_reasoning_tokens is not None and start < record.num_reasoning_tokens:
                place = record.num_reasoning_tokens - start
                if place <= item.num_output_tokens:
                    found.add((item.num_proposed_tokens, place))
            start += item.num_output_tokens
    return found


def grammar_states_of(policy, parser, count=NUM_REQUESTS):
    return [grammar_state_of(policy, parser=PARSERS[parser]()) for _ in range(count)]
