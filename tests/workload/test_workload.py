"""Prompts: the built-in set, subset, order, oversampling and seeds."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from harness.config.workload import WorkloadConfig
from harness.workload.conversations import BUILTIN_PROMPTS, Conversation, conversations, fingerprint, load_prompts
from harness.workload.formats import mt_bench
from harness.workload.prompt import Prompt
from harness.workload.prompt_files import read_prompts
from tests.support.prompt_files import make_prompts, shared_file, write_lines

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]


def ids(prompts: list[Prompt]) -> list[str]:
    return [prompt.prompt_id for prompt in prompts]


def test_gaps_between_arrivals_follow_the_rate():
    """Mean and standard deviation of an exponential law, from 4,000 conversations."""
    prompt = Prompt("one", "writing", ("Say 1.",))
    gaps = [Conversation(prompt, sample, sample).gap_s(2.5) for sample in range(4000)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    # 5 standard errors of the mean of an exponential law
    assert abs(mean - 0.4) < 5 * 0.4 / 4000**0.5 and spread == pytest.approx(0.4, rel=0.1)
    assert min(gaps) > 0 and gaps == [Conversation(prompt, sample, sample).gap_s(2.5) for sample in range(4000)]


def test_builtin_set_has_ten_prompts_of_two_turns_in_each_category():
    prompts = load_prompts(WorkloadConfig(), seed=0)
    assert Counter(prompt.category for prompt in prompts) == dict.fromkeys(mt_bench.CATEGORIES, 10)
    assert {len(prompt.turns) for prompt in prompts} == {2}
    assert len({turn for prompt in prompts for turn in prompt.turns}) == 160


def test_builtin_prompts_are_short_enough_for_small_models():
    assert max(len(turn) for prompt in read_prompts(BUILTIN_PROMPTS) for turn in prompt.turns) <= 320


def test_builtin_prompts_share_no_five_words_with_mt_bench():
    def windows(text: str) -> set[tuple[str, ...]]:
        words = text.lower().split()
        return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}

    public = [turn for prompt in read_prompts(shared_file("mt_bench/question.jsonl")) for turn in prompt.turns]
    own = [turn for prompt in read_prompts(BUILTIN_PROMPTS) for turn in prompt.turns]
    assert set.union(*map(windows, public)).isdisjoint(set.union(*map(windows, own)))


def test_categories_filter_and_an_unknown_one_names_the_choices(tmp_path):
    path = write_lines(tmp_path / "prompts.jsonl", *make_prompts(a=2, b=3, c=1))
    config = WorkloadConfig(path=str(path), categories=["c", "a"])
    assert sorted(ids(load_prompts(config, seed=0))) == ["a0", "a1", "c0"]
    with pytest.raises(ValueError, match=r"workload\.categories: expected some of a, b, c, found d, e"):
        load_prompts(replace(config, categories=["a", "d", "e"]), seed=0)


def test_order_depends_on_the_seed_only_and_covers_every_prompt(tmp_path):
    rows = make_prompts(a=20)
    path = write_lines(tmp_path / "prompts.jsonl", *rows)
    reversed_path = write_lines(tmp_path / "reversed.jsonl", *reversed(rows))
    config = WorkloadConfig(path=str(path))
    first = ids(load_prompts(config, seed=1))
    assert first == ids(load_prompts(replace(config, path=str(reversed_path)), seed=1))
    assert first != ids(load_prompts(config, seed=2))
    assert sorted(first) == sorted(row["prompt_id"] for row in rows)


def test_without_shuffle_the_order_is_the_files(tmp_path):
    rows = make_prompts(b=3, a=3)
    config = WorkloadConfig(path=str(write_lines(tmp_path / "prompts.jsonl", *rows)), shuffle=False)
    assert ids(load_prompts(config, seed=1)) == [row["prompt_id"] for row in rows]
    assert ids(load_prompts(replace(config, num_prompts=4), seed=1)) == ["b0", "b1", "a0", "a1"]


@pytest.mark.parametrize("num_prompts", [1, 3, 5, 7, 11])
def test_subset_is_even_over_the_categories_as_far_as_they_reach(num_prompts, tmp_path):
    path = write_lines(tmp_path / "prompts.jsonl", *make_prompts(a=8, b=2, c=8))
    config = WorkloadConfig(path=str(path), num_prompts=num_prompts)
    counts = Counter(prompt.category for prompt in load_prompts(config, seed=3))
    expected = {1: [0, 0, 1], 3: [1, 1, 1], 5: [1, 2, 2], 7: [2, 2, 3], 11: [2, 4, 5]}[num_prompts]
    assert sorted(counts[category] for category in "abc") == expected
    assert counts["b"] <= 2


def test_a_smaller_subset_is_part_of_a_larger_one_in_the_same_order():
    """Every number of prompts beside the next one, so that none may break ties in a way of its own."""
    larger = ids(load_prompts(WorkloadConfig(), seed=5))
    for num_prompts in range(len(larger) - 1, 0, -1):
        smaller = ids(load_prompts(WorkloadConfig(num_prompts=num_prompts), seed=5))
        assert smaller == [name for name in larger if name in set(smaller)] and len(smaller) == num_prompts
        larger = smaller


def test_held_out_prompts_are_those_that_were_not_taken(tmp_path):
    """What 40 prompts were tuned on is tried on the other 40, five of each category. Would catch one on both sides."""
    taken = load_prompts(WorkloadConfig(num_prompts=40), seed=5)
    others = load_prompts(WorkloadConfig(held_out=40), seed=5)
    assert sorted(ids(taken + others)) == sorted(ids(load_prompts(WorkloadConfig(), seed=5)))
    assert {*Counter(prompt.category for prompt in others).values()} == {5}
    some = ids(load_prompts(WorkloadConfig(held_out=40, num_prompts=8), seed=5))
    assert len(some) == 8 and set(some) <= set(ids(others))
    path = write_lines(tmp_path / "prompts.jsonl", *make_prompts(a=3))
    with pytest.raises(ValueError, match="held_out: expected fewer than 3, the prompts there are, found 3"):
        load_prompts(WorkloadConfig(path=str(path), held_out=3), seed=0)


def test_a_rate_that_moves_begins_again_behind_its_last_pair():
    """Would catch a rate that holds for one conversation too many, and one that stays at the last."""
    moving = WorkloadConfig(request_rates="20:2/0.5:1")
    assert [moving.rate_at(place) for place in range(7)] == [20, 20, 0.5, 20, 20, 0.5, 20]
    assert moving.arrives and not WorkloadConfig().arrives and WorkloadConfig(request_rate=3.0).rate_at(9) == 3


def test_more_prompts_than_there_are_is_refused(tmp_path):
    path = write_lines(tmp_path / "prompts.jsonl", *make_prompts(a=3))
    with pytest.raises(ValueError, match=r"expected at most 3, .* found 4; use workload\.num_requests"):
        load_prompts(WorkloadConfig(path=str(path), num_prompts=4), seed=0)


def test_num_turns_cuts_every_prompt():
    prompts = load_prompts(WorkloadConfig(num_turns=1, num_prompts=8), seed=0)
    assert [len(prompt.turns) for prompt in prompts] == [1] * 8


PROMPTS = [Prompt(name, "plain", ("Hello",)) for name in ("a", "b", "c")]


def test_oversampling_goes_through_the_prompts_in_order_and_numbers_the_copies():
    played = conversations(PROMPTS, WorkloadConfig(num_requests=7), seed=0)
    found = [(item.prompt.prompt_id, item.sample) for item in played]
    assert found == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1), ("c", 1), ("a", 2)]
    assert len(conversations(PROMPTS, WorkloadConfig(), seed=0)) == 3
    assert len(conversations(PROMPTS, WorkloadConfig(num_requests=2), seed=0)) == 2


def test_without_prompts_there_is_nothing_to_play():
    with pytest.raises(ValueError, match="expected at least one prompt"):
        conversations([], WorkloadConfig(), seed=0)


def test_seeds_differ_between_runs_prompts_samples_and_turns():
    played = [item for seed in (0, 1) for item in conversations(PROMPTS, WorkloadConfig(num_requests=9), seed)]
    seeds = [item.seed for item in played] + [item.turn_seed(turn) for item in played for turn in (0, 1)]
    assert len(set(seeds)) == 54
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_depend_on_the_prompt_and_not_on_its_place():
    config = WorkloadConfig(num_requests=6)
    seeds = {(item.prompt.prompt_id, item.sample): item.seed for item in conversations(PROMPTS, config, seed=4)}
    other = {(item.prompt.prompt_id, item.sample): item.seed for item in conversations(PROMPTS[::-1], config, seed=4)}
    assert seeds == other


def test_order_and_seeds_are_the_same_in_every_process():
    code = (
        "from harness.config.cell import WorkloadConfig as C; from harness.workload.conversations import *; "
        "p = load_prompts(C(), 9); "
        "print(fingerprint(p), [(c.seed, c.turn_seed(1)) for c in conversations(p, C(), 9)][:3])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    prompts = load_prompts(WorkloadConfig(), seed=9)
    seeds = [(item.seed, item.turn_seed(1)) for item in conversations(prompts, WorkloadConfig(), seed=9)][:3]
    assert outputs == {f"{fingerprint(prompts)} {seeds}\n"}


def test_seed_is_pinned_so_that_old_records_stay_comparable():
    (only,) = conversations(PROMPTS[:1], WorkloadConfig(), seed=0)
    assert (only.seed, only.turn_seed(0)) == (7513112033359884413, 3397020994999489604)


@pytest.mark.parametrize(
    "changed",
    [
        [Prompt("z", "plain", ("Hello",)), *PROMPTS[1:]],
        [Prompt("a", "plain", ("Hello!",)), *PROMPTS[1:]],
        [Prompt("a", "plain", ("Hel", "lo")), *PROMPTS[1:]],
        PROMPTS[::-1],
        PROMPTS[:2],
    ],
    ids=["id", "text", "turns", "order", "fewer"],
)
def test_fingerprint_changes_with_what_is_run(changed):
    assert fingerprint(PROMPTS) == fingerprint(list(PROMPTS))
    assert fingerprint(changed) != fingerprint(PROMPTS)
    assert len(fingerprint(PROMPTS)) == 16 and int(fingerprint(PROMPTS), 16) >= 0


def test_numbers_of_one_value_have_one_fingerprint(tmp_path: Path):
    """Would catch a cell that is another one where a line says 1 in the place of 1.0."""
    files = [write_lines(tmp_path / f"{name}.jsonl", {"prompt": "a", "sampling": {"temperature": number, "top_p": 1}})
             for name, number in (("whole", 1), ("real", 1.0))]  # fmt: skip
    assert len({fingerprint(read_prompts(path)) for path in files}) == 1
