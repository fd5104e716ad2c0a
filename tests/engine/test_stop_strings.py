"""Stop strings: where an answer ends by its text, what of it is the answer, and what of the last round counts.

The oracle knows no tokens: it looks for the stop strings in the text that an uncut run spells, character by character.
"""

from dataclasses import replace

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from harness.drafters.draft_tree import DraftTree
from harness.engine.commit import Commit, commit
from harness.engine.constraint.grammar_state import ConstraintOutcome
from harness.engine.request import Request
from harness.engine.stop_strings import StopStrings, spelt_by
from harness.records.request import CutReason, FinishReason, StopFound
from harness.workload.chat import decode_answer
from kernels.contract import DraftSampling, SiblingDraws, VerificationMethod
from kernels.methods import TreeMethod
from tests.support.toy_markov import toy_engine, toy_requests, transitions

pytestmark = pytest.mark.fast

PIECES = (b"ab", b"c\xc3", b"\xa9", b"bca", b"d", b"", b" \n")
"""What tokens spell: one of two characters, one that ends within a character, its rest, one that spells nothing."""
BYTES = dict(enumerate(PIECES))


class Spelling:
    """A tokenizer of PIECES."""

    def decode(self, token_ids, **_):
        return spelt(token_ids).decode(errors="replace")


def spelt(token_ids):
    return b"".join(BYTES[token_id] for token_id in token_ids)


def ending(token_ids, strings, min_tokens=0):
    """Number of tokens up to the end of the answer, the string that ends it, and its text; None where none does."""
    ends = [
        (place + len(string.encode()), place, string)
        for string in strings
        for place in range(len(spelt(token_ids)))
        if spelt(token_ids).startswith(string.encode(), place)
    ]
    for end, place, string in sorted(ends):
        number = next(number for number in range(len(token_ids) + 1) if len(spelt(token_ids[:number])) >= end)
        if number > min_tokens:
            return number, string, spelt(token_ids)[:place].decode(errors="replace")
    return None


def stops(*strings, min_tokens=0):
    return StopStrings(strings, BYTES).after(min_tokens)


@pytest.mark.parametrize(
    ("strings", "before", "tokens", "index", "found"),
    [
        pytest.param(["bc"], [0], [1], 0, StopFound("bc", 3), id="across two tokens"),
        pytest.param(["bc"], [4], [4, 3, 4], 1, StopFound("bc", 3), id="within a token, whose rest is cut"),
        pytest.param(["é"], [1], [2], 0, StopFound("é", 1), id="a character that tokens split"),
        pytest.param(["cé"], [4], [1, 2], 1, StopFound("cé", 2), id="its first byte completes nothing"),
        pytest.param(["dab"], [4, 5], [5, 0], 1, StopFound("dab", 3), id="tokens that spell nothing between"),
        pytest.param(
            ["ca", "b"], [4], [3], 0, StopFound("b", 3), id="what is complete first, not what begins the list"
        ),
        pytest.param(["ca", "bca"], [4], [3], 0, StopFound("bca", 3), id="of what is complete at once the longest"),
        pytest.param(["abab", "abd"], [0, 0, 0], [4], 0, StopFound("abd", 3), id="a false start is not lost"),
        pytest.param([" \n"], [], [6], 0, StopFound(" \n", 2), id="the first token"),
        pytest.param(["ab"], [0], [4, 5, 2], None, None, id="what was complete before does not count again"),
    ],
)
def test_the_first_token_that_completes_a_stop_string(strings, before, tokens, index, found):
    asked = stops(*strings)
    assert asked.behind(before).first(tokens) == index
    if index is not None:
        assert asked.found_in([*before, *tokens[: index + 1]]) == found


def test_pieces_for_single_bytes_are_read_as_bytes():
    """SentencePiece writes a line break so, with which most stop strings begin. Would catch `<0x0A>` as text, and
    special tokens that spell something."""
    vocabulary = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    ids = {token: number for number, token in enumerate(vocabulary)}
    fast = Tokenizer(models.BPE(ids, [("▁", "a")], byte_fallback=True, unk_token="<unk>"))
    fast.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="</s>", unk_token="<unk>")
    answer = [ids[token] for token in ("▁a", "<0xC3>", "</s>", "<0xA9>", "<0x0A>")]
    asked = StopStrings(["é\n", "<"], spelt_by(tokenizer))
    assert asked.behind([]).first(answer) == 4 and asked.found_in(answer) == StopFound("é\n", 2)
    without_end = [token for token in answer if token != ids["</s>"]]
    assert decode_answer(tokenizer, without_end, asked.found_in(without_end)) == " a"


def test_the_end_of_the_prompt_is_no_part_of_the_answer():
    asked = stops("ab", "dd")
    assert asked.behind([0, 4], 2).first([4]) is None and asked.behind([0, 4], 1).first([4]) == 0


def test_what_is_complete_within_min_tokens_ends_nothing():
    """As in vLLM: it may begin there. Would catch one that is lost because its beginning was not read."""
    asked = stops("abd", "c", min_tokens=2)
    assert asked.behind([]).first([3, 0, 4]) == 2 and asked.behind([3]).first([0, 4]) == 1
    assert asked.behind([3, 0]).first([4]) == 0


@pytest.mark.parametrize(
    ("emitted", "drafted", "kept", "num_draft", "num_accepted", "cut", "is_stopped"),
    [
        pytest.param([4, 0, 3, 4], [4, 0, 3], 3, 2, 2, CutReason.stop, True, id="accepted: it counts neither way"),
        pytest.param([4, 4], [4, 0, 3], 2, 2, 1, None, False, id="a rejection where it was drafted is no evidence"),
        pytest.param([4, 0, 3], [4, 0, 4], 3, 3, 2, None, True, id="as the recovered token nothing is cut"),
        pytest.param([3, 4, 4, 4], [3, 4, 4], 1, 0, 0, CutReason.stop, True, id="first: it began in the round before"),
        pytest.param([4, 4, 2], [4, 4], 3, 2, 2, None, False, id="not in this round"),
    ],
)
def test_what_counts_of_the_round_of_a_stop_string(emitted, drafted, kept, num_draft, num_accepted, cut, is_stopped):
    """The stop string is `abb`, and the text so far ends with `ab`... which token 3 completes with its `b`."""
    text = stops("abb").behind([0] if emitted[0] == 3 else [4])
    found = commit(emitted, drafted, 99, frozenset(), text=text)
    assert (found.token_ids, found.num_draft_tokens) == (tuple(emitted[:kept]), num_draft)
    assert (found.num_accepted_tokens, found.cut_reason, found.num_cut_tokens) == (
        num_accepted,
        cut,
        len(emitted) - kept,
    )
    assert found.finish_reason is (FinishReason.stop if is_stopped else None)


def test_what_ends_a_request_of_several_ends():
    """An end of sequence before the stop string, the stop string before the length and the grammar."""
    asked = stops("bc").behind([])
    assert commit([4, 3], [4], 99, {4}, text=asked).finish_reason is FinishReason.eos
    assert commit([3, 4], [3], 99, {4}, text=asked)[2:6] == (0, CutReason.stop, FinishReason.stop, 1)
    assert commit([3], [], 1, frozenset(), text=asked).finish_reason is FinishReason.stop
    assert commit([3], [], 99, {3}, text=asked).finish_reason is FinishReason.eos
    refused = commit([4, 3, 4], [4, 3], 99, frozenset(), ConstraintOutcome(1, 1, 1), text=asked)
    assert (refused.token_ids, refused.cut_reason, refused.finish_reason) == ((4,), CutReason.grammar, None)
    kept = commit([4, 3, 4], [4, 3], 99, frozenset(), ConstraintOutcome(3, 2, 2, is_complete=True), text=asked)
    assert kept == Commit((4, 3), 1, 1, CutReason.stop, FinishReason.stop, 1)


def test_a_stop_string_does_not_bias_the_rates():
    """With acceptance probability 1/2 a position, what is counted is 1/2 at every position that counts.

    Would catch a rejection that counts where an acceptance would have been cut.
    """
    drafted, text = [4, 0, 3], stops("abb").behind([4])
    accepted, seen = [0.0] * 3, [0.0] * 3
    for num_accepted, probability in enumerate((1 / 2, 1 / 4, 1 / 8, 1 / 8)):
        found = commit([*drafted[:num_accepted], 6], drafted, 99, frozenset(), text=text)
        for position in range(3):
            accepted[position] += probability * (found.num_accepted_tokens > position)
            seen[position] += probability * (found.num_draft_tokens > position)
    assert seen == [1, 1, 0] and accepted == [0.5, 0.25, 0]


def test_depths_of_a_tree_at_which_a_stop_string_may_be_complete_do_not_count():
    """Whatever branch was accepted: evidence must not depend on the outcome."""
    text, nodes, depths = stops("abb").behind([4]), [0, 4, 3, 6, 6], (1, 1, 2, 2, 3)
    for emitted in ([0, 3, 6, 6], [4, 6, 6], [6]):
        found = commit(emitted, nodes, 99, frozenset(), depths=depths, text=text)
        assert (found.num_draft_positions, found.num_draft_tokens) == (1, 2)
    assert commit([0, 6], nodes, 99, frozenset(), depths=depths, text=stops("x").behind([4])).num_draft_positions == 3


STRINGS = ("bca", "é", "da", "\n")
TARGET, DRAFT = transitions(len(PIECES), seed=3), transitions(len(PIECES), seed=4)
METHODS = {"block": VerificationMethod.block, "tree": TreeMethod.recursive}
TREE = DraftTree((-1, 0, -1, 0, 1, 4, 2, -1), SiblingDraws.distinct)


def toys(kind, **options):
    method = METHODS.get(kind, VerificationMethod.probabilistic)
    shape = {"tree": TREE} if kind == "tree" else {"num_speculative_tokens": 0 if kind == "none" else 3}
    return toy_engine(TARGET, DRAFT, method, DraftSampling.sampled, max_new_tokens=24, num_slots=20, **shape, **options)


def answers(engine, requests, asked=None):
    run = engine.run([replace(item, stops=asked) for item in requests], lambda answer: None)
    return {record.prompt_id: record for record in run.requests}


def check_cut(uncut, cut, strings, min_tokens=0):
    """Each answer is the uncut one up to its stop string, and so are its rounds; returns the number of tokens cut."""
    assert len(cut) == len(uncut)
    num_cut = 0
    for name, record in cut.items():
        whole = uncut[name]
        end = ending(whole.output_token_ids, strings, min_tokens)
        if end is None:
            assert record.output_token_ids == whole.output_token_ids and record.finish_reason is FinishReason.length
            continue
        number, string, text = end
        assert record.output_token_ids == whole.output_token_ids[:number]
        assert record.finish_reason is FinishReason.stop and record.stop.string == string
        assert decode_answer(Spelling(), record.output_token_ids, record.stop) == text
        for ours, theirs in zip(record.rounds[:-1], whole.rounds, strict=False):
            assert ours.num_output_tokens == theirs.num_output_tokens and ours.cut_reason is None
            # a drafted end that was rejected is no evidence
            assert ours.num_draft_tokens <= theirs.num_draft_tokens
        last, was = record.rounds[-1], whole.rounds[len(record.rounds) - 1]
        given = was.num_output_tokens + was.num_cut_tokens
        assert last.num_cut_tokens == given - last.num_output_tokens
        assert (last.cut_reason is CutReason.stop) == (last.num_cut_tokens > 0)
        assert last.num_accepted_tokens <= last.num_output_tokens - 1
        num_cut += last.num_cut_tokens
    return num_cut


@pytest.mark.parametrize(
    ("kind", "overlaps", "min_tokens"),
    [("none", False, 9), ("probabilistic", False, 0), ("block", True, 9), ("tree", True, 0)],
)
def test_a_sampled_answer_is_the_uncut_one_up_to_its_stop_string(kind, overlaps, min_tokens):
    """Streams are those of the uncut run, so that the law is that of plain decoding, cut.

    Would catch a step beyond the end that is kept, tokens behind the stop string that are kept or count as accepted, a
    stop string that is lost between two rounds, and one that is found because the prompt ends with its beginning.
    """
    requests = toy_requests(20, prompt=(1,))
    uncut = answers(toys(kind), requests)
    assert any(item.output_token_ids[0] == 2 for item in uncut.values()), (
        "the other half of the prompt's last character"
    )
    ahead = {"overlaps": overlaps, "graphs": overlaps}
    found = answers(toys(kind, **ahead), requests, stops(*STRINGS, min_tokens=min_tokens))
    assert (check_cut(uncut, found, STRINGS, min_tokens) > 0) == (kind != "none")


@pytest.mark.parametrize("kind", ["probabilistic", "block", "tree"])
def test_at_temperature_0_every_method_ends_where_the_baseline_does(kind):
    requests = [Request(str(token), "toy", 0, 0, token, (token,)) for token in BYTES]
    ends = []
    for each in ("none", kind):
        found = answers(toys(each, temperature=0.0), requests, stops("ab", "é", "\n"))
        ends.append({name: (item.output_token_ids, item.stop) for name, item in found.items()})
    assert ends[0] == ends[1] and any(stop is not None for _, stop in ends[0].values())
