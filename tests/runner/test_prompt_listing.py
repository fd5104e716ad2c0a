"""What `run --list` says of prompts: counted, measured in tokens, and what is left out or cut, with the setting."""

from harness.runner.plan.compose import compose_plan
from harness.runner.prompt_listing import prompt_lines
from tests.support.prompt_files import write_lines

LONG = "word " * 1200


def lines_of(*settings):
    return prompt_lines(compose_plan(["drafter=none", "decoding.max_new_tokens=64", *settings]).cells)


def test_what_is_left_out_is_counted_with_the_setting_that_does_it(tmp_path):
    """Would catch prompts that vanish without a word, and one that is counted where it still runs."""
    rows = [{"turns": [f"Say {number}.", "Again."], "category": "ab"[number % 2]} for number in range(8)]
    path = write_lines(tmp_path / "mine.jsonl", *rows, {"turns": [LONG, "Again."], "category": "a"})
    chosen = ["workload.categories=[a]", "workload.num_turns=1", "workload.num_requests=10"]
    assert lines_of(f"workload.path={path}", *chosen, "decoding.temperature=0,1") == [
        "prompts (mine.jsonl): 5 prompts in 1 category, 10 turns in 10 plays, counted once below",
        "  tokens of first requests: least 11, p50 11, p90 1,206, p99 1,206, most 1,206",
        "  4 prompts left out by workload.categories=[a]",
        "  5 turns left out by workload.num_turns=1",
        "  1 request left out, longer than 960 tokens beside decoding.max_new_tokens=64 (workload.too_long=skip)",
    ]
    exact = lines_of(f"workload.path={path}", "workload.num_turns=1", "workload.prompt_tokens=100")
    assert exact[2:] == [
        "  9 turns left out by workload.num_turns=1",
        "  1 request cut to workload.prompt_tokens=100",
        "  8 requests repeated to workload.prompt_tokens=100",
    ]


def test_given_histories_are_measured_turn_by_turn_and_what_comes_behind_a_long_one_is_left_out(tmp_path):
    """Would catch a trace that is measured by its first request alone, which is its shortest."""
    asked, said = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": LONG}
    path = write_lines(tmp_path / "trace.jsonl", {"messages": [asked, said, asked, said, asked]})
    found = lines_of(f"workload.path={path}", "workload.history=given")
    assert found[0] == "prompts (trace.jsonl): 1 prompt in 1 category, 3 turns"
    assert found[1].startswith("  tokens of requests: least 8, p50 1,2")
    assert found[2].startswith("  2 requests left out, longer than 960 tokens")


def test_each_target_counts_in_its_own_tokens_and_a_hub_data_set_is_not_read():
    """Would catch a list that downloads, and the tokens of one target told for both."""
    both = lines_of("target=zoo,smollm2", "workload.num_prompts=2")
    assert [line.partition(":")[0] for line in both if line.startswith("prompts")] == [
        "prompts (builtin, zoo)", "prompts (builtin, smollm2)",
    ]  # fmt: skip
    assert lines_of("workload=speed_bench") == [
        "prompts (nvidia/SPEED-Bench): not looked at, since a list downloads nothing"
    ]
