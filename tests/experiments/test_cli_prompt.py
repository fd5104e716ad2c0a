"""The prompt command without a model: arguments, and the text with its tokens told apart."""

import io

import pytest

from experiments import prompt as command
from harness.config.schema import SettingsError
from harness.records.request import CutReason
from harness.report.token_colours import (
    LOOKS,
    Piece,
    TokenKind,
    acceptance_line,
    legend,
    pieces,
    render,
    token_kinds,
    wants_colour,
)
from kernels.contract import VerificationMethod
from tests.support.synthetic_cells import cell_record, request_record, round_record, row_of

pytestmark = pytest.mark.fast

TARGET, ACCEPTED, RECOVERED, BONUS = TokenKind.target, TokenKind.accepted, TokenKind.recovered, TokenKind.bonus


class Terminal(io.StringIO):
    def isatty(self):
        return True


def decode_bytes(token_ids):
    """Every token is one byte, as in a byte-level tokenizer."""
    return bytes(token_ids).decode("utf-8", errors="replace")


def test_the_last_token_of_a_round_is_recovered_or_bonus():
    rounds = [round_record(0, 0, 0.1), round_record(3, 1, 0.2), round_record(3, 3, 0.3), round_record(3, 0, 0.4)]
    assert token_kinds(rounds) == (TARGET, ACCEPTED, RECOVERED, ACCEPTED, ACCEPTED, ACCEPTED, BONUS, RECOVERED)


def test_what_a_cut_leaves_was_drafted_and_accepted():
    cut = round_record(1, 1, 0.1, num_output=2, cut=CutReason.eos, num_proposed=4)
    assert token_kinds([cut]) == (ACCEPTED, ACCEPTED)


def test_a_rejection_at_the_length_limit_is_recovered_although_the_evidence_ends_before_it():
    """Two tokens may be emitted, four were proposed: one position counts, its draft is accepted, the next is not."""
    assert token_kinds([round_record(1, 1, 0.1, num_proposed=4)]) == (ACCEPTED, RECOVERED)


def test_kinds_cover_every_output_token():
    rounds = [round_record(0, 0, 0.1), round_record(2, 2, 0.2), round_record(2, 1, 0.3)]
    assert len(token_kinds(rounds)) == len(request_record(rounds).output_token_ids)


def test_a_character_of_several_tokens_stays_whole_and_goes_to_the_last():
    text = "aä€😀"
    token_ids = list(text.encode())
    kinds = [ACCEPTED, ACCEPTED, RECOVERED, ACCEPTED, ACCEPTED, BONUS, ACCEPTED, ACCEPTED, ACCEPTED, TARGET]
    found = pieces(token_ids, kinds, decode_bytes)
    assert found == (Piece(ACCEPTED, "a"), Piece(RECOVERED, "ä"), Piece(BONUS, "€"), Piece(TARGET, "😀"))


def test_bytes_that_make_no_character_do_not_hold_the_rest_back():
    token_ids = [0xFF, 0xFF, *"é".encode(), 0xE2]
    found = pieces(token_ids, [RECOVERED, BONUS, ACCEPTED, ACCEPTED, RECOVERED], decode_bytes)
    assert "".join(piece.text for piece in found) == decode_bytes(token_ids)
    assert found[-1] == Piece(RECOVERED, "\ufffd")


def test_tokens_without_text_leave_no_empty_marks():
    found = pieces([1, 2, 3], [ACCEPTED, RECOVERED, BONUS], lambda token_ids: "abc"[: min(2, len(token_ids))])
    assert found == (Piece(ACCEPTED, "a"), Piece(RECOVERED, "b"))


def test_accepted_tokens_of_neighbouring_rounds_are_joined_and_others_are_not():
    found = pieces([97, 98, 99, 100], [ACCEPTED, ACCEPTED, RECOVERED, RECOVERED], decode_bytes)
    assert found == (Piece(ACCEPTED, "ab"), Piece(RECOVERED, "c"), Piece(RECOVERED, "d"))


def test_without_colour_marks_tell_the_kinds_apart():
    text = [
        Piece(TARGET, "The"),
        Piece(ACCEPTED, " cat sat"),
        Piece(RECOVERED, " on"),
        Piece(BONUS, ".\n"),
        Piece(ACCEPTED, "It"),
    ]
    assert render(text, colour=False) == "[The] cat sat‹ on›«.⏎»\nIt"


def test_with_colour_the_text_is_left_as_it_is():
    text = [Piece(ACCEPTED, " a\n"), Piece(RECOVERED, "b"), Piece(BONUS, "c")]
    shown, colours = render(text, colour=True), [look.colour for look in LOOKS.values()]
    for kind in (ACCEPTED, RECOVERED, BONUS):
        assert LOOKS[kind].colour in shown
    for code in [*colours, "\x1b[0m"]:
        shown = shown.replace(code, "")
    assert shown == " a\nbc"
    assert len(set(colours)) == len(TokenKind)


def test_the_legend_explains_every_kind_in_one_line():
    assert legend(colour=False) == (
        "accepted draft  ‹recovered after a rejection›  «bonus after a fully accepted draft»  [target alone]"
    )
    assert all(look.colour in legend(colour=True) for look in LOOKS.values())


@pytest.mark.parametrize(
    ("stream", "environment", "expected"),
    [
        (Terminal(), {}, True),
        (io.StringIO(), {}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (Terminal(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
    ids=["terminal", "pipe", "NO_COLOR", "empty NO_COLOR", "dumb terminal", "FORCE_COLOR", "NO_COLOR wins"],
)
def test_colour_is_for_terminals_that_want_it(stream, environment, expected):
    assert wants_colour(stream, environment) is expected


def test_the_acceptance_of_a_request_is_counted_as_defined():
    rounds = [round_record(0, 0, 0.1), round_record(3, 3, 0.2), round_record(3, 1, 0.3), round_record(2, 0, 0.4)]
    assert acceptance_line(request_record(rounds)) == (
        "8 tokens, 3 drafts: accepted 4/8 drafted (50%), mean acceptance length 2.33, by position 67% 33% 50%"
    )
    assert acceptance_line(request_record([round_record(0, 0, 0.1)])) == "1 tokens, nothing drafted"


def test_the_acceptance_of_a_request_is_that_of_a_cell_with_it_alone():
    rounds = [round_record(0, 0, 0.1), round_record(3, 2, 0.2), round_record(3, 0, 0.3), round_record(1, 1, 0.4)]
    record = request_record([*rounds, round_record(0, 0, 0.5, cut=CutReason.eos, num_proposed=3)])
    row = row_of(cell_record([record]))
    by_position = " ".join(f"{row[f'acceptance_rate_per_pos_{i}']:.0%}" for i in (1, 2, 3))
    assert acceptance_line(record) == (
        f"{row.num_output_tokens} tokens, {row.num_drafts} drafts: accepted {row.num_accepted_tokens}"
        f"/{row.num_draft_tokens} drafted ({row.acceptance_rate:.0%}), "
        f"mean acceptance length {row.mean_acceptance_length:.2f}, by position {by_position}"
    )


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("drafter=mtp", True),
        ("decoding.temperature=0", True),
        ("draftr=mtp", True),
        ("+drafter=mtp", True),
        ("What is 1+1?", False),
        ("Solve x = 3 for x", False),
        ("x=1 and y=2, what is x+y?", False),
        ("hello", False),
    ],
)
def test_prompts_and_settings_are_told_apart(argument, expected):
    assert command.is_override(argument) is expected


def test_the_cell_that_answers_is_eagle3_unless_another_is_given():
    assert command.compose_cell([]).drafter.kind.value == "eagle3"
    assert command.compose_cell(["drafter=mtp"]).drafter.kind.value == "mtp"
    assert command.compose_cell(["drafter.kind=ngram"]).drafter.kind.value == "ngram"
    assert command.compose_cell(["drafter=none"]).is_baseline
    assert command.compose_cell(["verification=block"]).verification.method is VerificationMethod.block


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("verification=strict,block", "expected one value, found 2; rejection-lab run does sweeps"),
        ("experiment=quickstart", "experiment is not used here"),
        ("workload.num_prompts=3", "workload.num_prompts is not used here"),
        ("drafter=eagel3", "did you mean eagle3?"),
    ],
)
def test_settings_that_mean_nothing_here_are_refused(override, message):
    with pytest.raises(SettingsError) as caught:
        command.compose_cell([override])
    assert message in str(caught.value)


def test_prompts_come_from_arguments_a_file_or_standard_input(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("from a file\n\n  and another \n", encoding="utf-8")
    silent = Terminal()
    assert command.read_prompts(["given"], None, io.StringIO("ignored")) == ["given"]
    assert command.read_prompts(["given"], str(file), silent) == ["given", "from a file", "and another"]
    assert command.read_prompts([], None, io.StringIO("one\ntwo\n")) == ["one", "two"]


@pytest.mark.parametrize(
    ("file", "stdin"), [(None, Terminal()), (None, io.StringIO("")), ("not_there.txt", Terminal())]
)
def test_no_prompt_is_an_error(file, stdin):
    with pytest.raises(SettingsError, match="expected a"):
        command.read_prompts([], file, stdin)


def fake_answer(cell, prompts):
    rounds = [round_record(0, 0, 0.1), round_record(4, 2, 0.2), round_record(4, 4, 0.3)]
    return [request_record(rounds, str(index)) for index in range(len(prompts))], lambda ids: "abcdefghi"[: len(ids)]


def test_answers_are_shown_with_their_acceptance(monkeypatch, capsys):
    monkeypatch.setattr(command, "answer", fake_answer)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert command.main(["first question", "verification=block", "--", "--dashes=too"], Terminal()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "drafter eagle3, K = 4, sampled drafts, temperature 1, block verification (lossless)"
    assert lines[1] == legend(colour=False)
    assert lines[3:6] == [
        "> first question",
        "[a]bc‹d›efgh«i»",
        "  9 tokens, 2 drafts: accepted 6/8 drafted (75%), mean acceptance length 4.00, by position 100% 100% 50% 50%",
    ]
    assert lines[7] == "> --dashes=too"


def test_a_lossy_method_is_said_to_be_lossy(monkeypatch, capsys):
    monkeypatch.setattr(command, "answer", fake_answer)
    command.main(["question", "verification=typical"], Terminal())
    assert "typical verification (lossy)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["hi", "drafter=eagel3"], ["hi", "--fil"], [], ["hi", "--file"]],
    ids=["value", "option", "nothing", "no file"],
)
def test_mistakes_get_one_line_and_exit_code_2(arguments, capsys):
    assert command.main(arguments, Terminal()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1


def test_help_names_the_settings_that_are_used(capsys):
    assert command.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "decoding.temperature" in shown
    assert "workload.num_prompts" not in shown
    assert "eagle3*" in shown and "none*" not in shown
