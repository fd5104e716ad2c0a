"""The compile check reports what ptxas found of the very kernel that a launch would run, and calls a spill a spill."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import triton

from experiments import compile_check as command
from harness.checks.compile_check import compiled as compiling
from harness.checks.compile_check import launches
from harness.checks.compile_check.chosen import CHOSEN
from harness.checks.compile_check.compiled import CompiledVariant, record
from harness.checks.compile_check.complaints import complaints, known_spills
from harness.checks.compile_check.launches import FIRST_TARGET, OTHER_TARGETS
from harness.checks.compile_check.report import to_text
from harness.engine.compile_ahead import variant as recording
from kernels.methods import NAMED_METHODS
from tests.support.toy_kernel_calls import in_process_of_its_own

ROOT = Path(__file__).parents[2]
TOY_KERNELS = '''
import triton
import triton.language as tl

@triton.jit
def scaling_kernel(values, size, BLOCK: tl.constexpr):
    """Keeps BLOCK values in registers until their sum is known."""
    offsets = tl.arange(0, BLOCK)
    block = tl.load(values + offsets, mask=offsets < size, other=0.0)
    tl.store(values + offsets, block / tl.sum(block), mask=offsets < size)

@triton.jit
def same_kernel(values, size, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    block = tl.load(values + offsets, mask=offsets < size, other=0.0)
    # on other lines, with another name
    tl.store(values + offsets, block / tl.sum(block), mask=offsets < size)
'''
TOY = """
import json, sys
import torch
import kernels
from harness.checks.compile_check.compiled import compile_launches, kernels_in, record
from harness.models import fused
from toy_kernels import same_kernel, scaling_kernel

def scale(block, values=torch.zeros(100), num_warps=1, kernel=scaling_kernel):
    kernel[(1,)](values, values.numel(), BLOCK=block, num_warps=num_warps)

launches = [
    ("small", lambda: scale(128)),
    ("small again", lambda: scale(128)),
    ("another type", lambda: scale(128, torch.zeros(100, dtype=torch.float16))),
    ("four warps", lambda: scale(128, num_warps=4)),
    ("far too large", lambda: scale(8192)),
    ("the same", lambda: scale(128, kernel=same_kernel)),
]
# processes that compile import this module
if __name__ == "__main__":
    recorded = [item for target in map(int, sys.argv[1:]) for item in record(target, launches)]
    toys = [item._asdict() | {"spills": item.spills} for item in compile_launches(recorded, 1)]
    keys = [item.key for item in recorded]
    print(json.dumps({"toys": toys, "keys": keys, "kernels": sorted(kernels_in(kernels) | kernels_in(fused))}))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What is found in a process of its own: under Triton's interpreter nothing is a compiled function."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "toy_kernels.py").write_text(TOY_KERNELS)
    (folder / "toy.py").write_text(TOY)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "TRITON_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, str(folder / "toy.py"), "80", "90"]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def toys(compiled: dict) -> dict[int, list[dict]]:
    """What is found of the toy kernel, by target."""
    return {target: [item for item in compiled["toys"] if item["target"] == target] for target in (80, 90)}


@pytest.mark.parametrize("target", [80, 90])
def test_a_kernel_that_spills_is_reported(toys: dict[int, list[dict]], target: int):
    spilling = [item for item in toys[target] if item["spills"]]
    assert [item["launched_by"] for item in spilling] == ["far too large"]
    assert spilling[0]["spill_store_bytes"] > 0 and spilling[0]["spill_load_bytes"] > 0
    assert spilling[0]["stack_bytes"] > 0


def test_every_variant_is_compiled_once(toys: dict[int, list[dict]]):
    names = ["small", "another type", "four warps", "far too large", "the same"]
    assert [item["launched_by"] for item in toys[90]] == names
    for target, variants in toys.items():
        for item in variants:
            num_warps = 4 if item["launched_by"] == "four warps" else 1
            assert (item["target"], item["num_warps"]) == (target, num_warps)
            # the sum is of all warps
            assert (item["num_barriers"] > 0) is (num_warps > 1)
        assert 0 < variants[0]["num_registers"] < 100
        assert variants[0]["spill_store_bytes"] == variants[0]["spill_load_bytes"] == 0


def test_machine_code_is_compared_without_names_and_lines(compiled: dict, toys: dict[int, list[dict]]):
    """Would catch a digest in which a moved line is other code, and one that takes code for the same that is not."""
    for variants in toys.values():
        codes = {item["launched_by"]: item["code"] for item in variants}
        assert codes.pop("the same") == codes["small"]
        assert len(set(codes.values())) == len(codes)
    assert len(set(compiled["keys"])) == len(compiled["keys"])


def variant(kernel: str, num_spilled: int, num_registers: int = 96) -> CompiledVariant:
    return CompiledVariant(
        90, kernel, "a call", 4, num_registers, 128, num_spilled, num_spilled, num_spilled, 2, "c0de"
    )


def test_spills_are_complaints_but_for_known_ones_that_have_not_grown():
    """Would catch a known spill that hides others of its kernel."""
    assert complaints([variant("_one_kernel", 0)]) == []
    (found,) = complaints([variant("_one_kernel", 0), variant("_two_kernel", 8)])
    assert found.startswith("sm_90 _two_kernel (a call): expected no register spills, found 8 bytes stored")
    known = variant("_row_reduce_kernel", 4, num_registers=56)
    assert complaints([known]) == [] and known_spills([variant("_row_reduce_kernel", 0, 56)]) == []
    (told,) = known_spills([known, known])
    assert told.startswith("known: 2 variants of sm_90 _row_reduce_kernel spill up to 4 bytes stored and 4 loaded")
    others = [variant("_row_reduce_kernel", 8, 56), variant("_row_reduce_kernel", 4, 48), known._replace(target=100)]
    assert len(complaints(others)) == 3 and known_spills(others) == []


def test_shared_memory_that_a_generation_does_not_have_is_a_complaint():
    large = variant("_one_kernel", 0)._replace(shared_bytes=100 * 1024)
    assert complaints([large]) == []
    (found,) = complaints([large._replace(target=89)])
    assert found.startswith("sm_89 _one_kernel (a call): expected 101376 bytes of shared memory at most, found 102400")


def test_the_table_has_a_line_for_each_variant():
    above, *lines = to_text([variant("_one_kernel", 0), variant("_two_kernel", 8)]).splitlines()
    assert "target: sm_90" in above and "registers: 96" in above
    assert [line.split() for line in lines[-2:]] == [["_one_kernel", "0", "0", "0"], ["_two_kernel", "8", "8", "8"]]


def test_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recording.knobs.runtime, "interpret", True)
    with pytest.raises(RuntimeError, match="found TRITON_INTERPRET set"):
        record(90, [])


def test_kernels_of_a_package_are_found(compiled: dict):
    found = set(compiled["kernels"])
    assert {"_logprobs_kernel", "_row_reduce_kernel", "_residual_sample_kernel"} <= found
    assert {"_add_rms_norm_kernel", "_slot_attention_kernel", "_combine_splits_kernel"} <= found


LAUNCHED = """
import json, sys
import kernels
from harness.checks.compile_check.chosen import CHOSEN
from harness.checks.compile_check.compiled import kernels_in, record
from harness.checks.compile_check.complaints import never_launched
from harness.checks.compile_check.launches import calls, launches_of_methods, on_meta
from harness.checks.compile_check.step_calls import EVERY_TARGET, largest_of_each_kind, steps
from harness.config.cli.methods import method_of
from kernels.methods.hooks import hooks_of

of_rule = launches_of_methods(sys.argv[1:], False)
rule = repr(hooks_of(method_of(sys.argv[1])))
chosen = record(90, on_meta(call for call in calls() if call[0] in CHOSEN))
words = "built-in, draft model"
of_steps = record(90, steps({words: EVERY_TARGET[words]}))
largest = largest_of_each_kind(of_steps)
expected = {(90, name) for name in kernels_in(kernels)}
print(json.dumps({
    "calls": [item.launched_by for item in of_rule],
    "has_rule": [item.variant.kernel for item in of_rule if rule in str(item.variant.constants)],
    "missing": never_launched([*of_rule, *chosen, *largest], expected),
    "missing_without_steps": never_launched([*of_rule, *chosen], expected),
    "steps": sorted({item.launched_by for item in of_steps}),
    "kernels": [sorted({item.variant.kernel for item in items}) for items in (of_steps, largest)],
    "num": [len(of_steps), len(largest)],
}))
"""


def test_every_kernel_of_the_core_is_launched_and_all_that_a_rule_of_ones_own_makes_of_them(tmp_path: Path):
    """Would catch a new kernel that nothing compiles, before anything is compiled; a choice of steps that loses a
    kernel; and a check of the user's rule that compiles a built-in one in its place."""
    found = in_process_of_its_own(LAUNCHED, tmp_path, "tests.support.own_rules:Tempered")
    assert found["missing"] == []
    assert any("_commit_kernel: expected a launch" in line for line in found["missing_without_steps"])
    assert all(name.startswith("verify tests.support.own_rules:Tempered") for name in found["calls"])
    assert set(found["has_rule"]) == {"_row_reduce_kernel", "_truncated_rows_kernel", "_residual_sample_kernel"}
    assert found["steps"] == ["built-in, draft model", "built-in, draft model, no drafts"]
    of_steps, largest = found["kernels"]
    assert of_steps == largest and found["num"][1] < found["num"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods=blok"], "--methods: expected some of "),
        (["--methods=tests.support.own_methods:HalfStrict"], "--methods: expected rules with `hooks`"),
        (["--methods=block", "--stamp=stamp.json"], "--stamp: expected no --methods beside it"),
    ],
    ids=lambda item: item[0] if isinstance(item, list) else None,
)
def test_methods_that_cannot_be_compiled_are_one_clear_line(arguments: list[str], message: str, capsys):
    assert command.main(arguments) != 0
    told = capsys.readouterr().err
    assert message in told and "Traceback" not in told


def test_what_a_change_compiles_is_part_of_the_full_list(monkeypatch: pytest.MonkeyPatch):
    """Would catch a launch that was renamed in the full list, two of one name, and targets that --all leaves out."""
    names = [name for name, _ in launches.calls()]
    assert set(CHOSEN) < set(names) and len(set(names)) == len(names)
    asked: set[int] = set()

    def ask(target: int, _: object) -> list:
        asked.add(target)
        return []

    monkeypatch.setattr(launches, "record", ask)
    for everything, targets in ((False, {FIRST_TARGET}), (True, {FIRST_TARGET, *OTHER_TARGETS})):
        asked.clear()
        assert launches.launches_of(everything) == [] and asked == targets


def test_every_method_is_compiled_for_every_change():
    """Would catch a method that is in the table and that only --all compiles."""
    compiled = {name.removeprefix("verify ").split(",")[0].removesuffix(" trees") for name in CHOSEN}
    assert set(NAMED_METHODS) <= compiled


def test_help_says_what_is_compiled_for_what(monkeypatch: pytest.MonkeyPatch, capsys):
    """Would catch a request for help that compiles for minutes."""
    monkeypatch.setattr(command, "check", lambda *_: pytest.fail("compiles"))
    assert command.main(["--help"]) == 0
    told = capsys.readouterr().out
    assert "--all" in told and max(map(len, told.splitlines())) <= 120
    assert all(f"sm_{target}" in told for target in (FIRST_TARGET, *OTHER_TARGETS))


@pytest.mark.parametrize("everything", [False, True])
def test_the_check_decides(monkeypatch: pytest.MonkeyPatch, everything: bool):
    other = "the other check"
    monkeypatch.setattr(command, "check", lambda chosen, *_: 1 if chosen == everything else pytest.fail(other))
    assert command.main(["--all"] * everything) == 1


class Kernel(NamedTuple):
    """The part of a variant that names it."""

    kernel: str


class Launch(NamedTuple):
    """A recorded launch of a given key."""

    key: str
    target: int = 90
    launched_by: str = "a call"
    variant: Kernel = Kernel("_one_kernel")


def test_a_stamp_spares_the_same_variants_and_tells_other_machine_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    """Would catch a changed kernel that is not compiled again, and a stamp that is left by a check with complaints."""
    path, compiled_keys = tmp_path / "stamp.json", []
    given, spilled, code = [Launch("a"), Launch("b")], [8], ["1"]

    def compile_them(missing: list[Launch], _: int) -> list[CompiledVariant]:
        compiled_keys.append([launch.key for launch in missing])
        return [variant("_one_kernel", spilled[0])._replace(code=launch.key + code[0]) for launch in missing]

    monkeypatch.setattr(launches, "launches_of", lambda everything: list(given))
    monkeypatch.setattr(launches, "expected_kernels", lambda _: {(90, "_one_kernel")})
    monkeypatch.setattr(compiling, "compile_launches", compile_them)

    def check() -> tuple[int, list[list[str]], str]:
        compiled_keys.clear()
        return command.main(["--stamp", str(path)]), compiled_keys, capsys.readouterr().err

    assert check()[:2] == (1, [["a", "b"]]) and not path.exists()
    spilled[0] = 0
    assert check()[:2] == (0, [["a", "b"]])
    exit_code, compiled, told = check()
    assert (exit_code, compiled) == (0, []) and "2 of 2 variants compiled before without a complaint" in told
    given[1] = Launch("c")
    spilled[0] = 8
    before = path.read_text()
    assert check()[:2] == (1, [["c"]]) and path.read_text() == before
    spilled[0] = 0
    exit_code, compiled, told = check()
    assert (exit_code, compiled) == (0, [["c"]])
    assert "machine code: 1 variants as before" in told
    assert "other machine code: _one_kernel: a call (2)" in told
    # the same code under another key
    given[0], code[0] = Launch("d"), "1"
    path.write_text(path.read_text().replace("a a1", "a d1"))
    assert "machine code: 2 variants as before" in check()[2]
    path.write_text(path.read_text().replace(triton.__version__, "3.0.0"))
    assert check()[:2] == (0, [["d", "c"]])
    monkeypatch.setattr(launches, "expected_kernels", lambda _: {(90, "_two_kernel")})
    exit_code, compiled, told = check()
    assert (exit_code, compiled) == (1, []) and "_two_kernel: expected a launch that compiles it" in told


@pytest.mark.parametrize("content", ["{", "[]", '{"triton": "a"}', '{"triton": "a", "variants": {"b": "c"}}', "1"])
def test_a_file_that_is_no_stamp_is_refused(tmp_path: Path, content: str, capsys):
    path = tmp_path / "stamp.json"
    path.write_text(content)
    assert command.main(["--stamp", str(path)]) == 1
    assert "stamp.json: expected the stamp of a compile check, found" in capsys.readouterr().err
    assert command.main(["--all", "--stamp", str(path)]) == 1
    assert "--stamp: expected no --all" in capsys.readouterr().err
    assert command.main(["--processes", "0"]) == 1
    assert "--processes: expected 1 or more, found 0" in capsys.readouterr().err
