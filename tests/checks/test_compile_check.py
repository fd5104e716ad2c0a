"""The compile check reports what ptxas found of the very kernel that a launch would run, and calls a spill a spill."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import compile_check as command
from harness.checks.compile_check import shares
from harness.checks.compile_check.chosen import CHOSEN
from harness.checks.compile_check.report import to_text
from harness.checks.compile_check.shares import FIRST_TARGET, OTHER_TARGETS, shares_of
from harness.checks.compile_check.stamp import COMPILED
from harness.engine.compile_ahead.compile import CompiledVariant, compile_for, complaints, knobs
from kernels.methods import NAMED_METHODS
from tests.support.toy_kernel_calls import in_process_of_its_own

ROOT = Path(__file__).parents[2]
TOY = '''
import json, sys
import torch, triton
import triton.language as tl
import kernels
from harness.engine.compile_ahead.compile import compile_for, kernels_in
from harness.models import fused

@triton.jit
def _scaling_kernel(values, size, BLOCK: tl.constexpr):
    """Keeps BLOCK values in registers until their sum is known."""
    offsets = tl.arange(0, BLOCK)
    block = tl.load(values + offsets, mask=offsets < size, other=0.0)
    tl.store(values + offsets, block / tl.sum(block), mask=offsets < size)

def scale(block, values=torch.zeros(100), num_warps=1):
    _scaling_kernel[(1,)](values, values.numel(), BLOCK=block, num_warps=num_warps)

launches = [
    ("small", lambda: scale(128)),
    ("small again", lambda: scale(128)),
    ("another type", lambda: scale(128, torch.zeros(100, dtype=torch.float16))),
    ("four warps", lambda: scale(128, num_warps=4)),
    ("far too large", lambda: scale(8192)),
]
found = {target: compile_for(target, launches) for target in map(int, sys.argv[1:])}
toys = {key: [item._asdict() | {"spills": item.spills} for item in items] for key, items in found.items()}
print(json.dumps({"toys": toys, "kernels": sorted(kernels_in(kernels) | kernels_in(fused))}))
'''


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What is found in a process of its own: under Triton's interpreter nothing is a compiled function."""
    folder = tmp_path_factory.mktemp("toy")
    (folder / "toy.py").write_text(TOY)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, str(folder / "toy.py"), "80", "90"]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def toys(compiled: dict) -> dict[int, list[dict]]:
    """What is found of the toy kernel, by target."""
    return {int(target): items for target, items in compiled["toys"].items()}


@pytest.mark.parametrize("target", [80, 90])
def test_a_kernel_that_spills_is_reported(toys: dict[int, list[dict]], target: int):
    spilling = [item for item in toys[target] if item["spills"]]
    assert [item["launched_by"] for item in spilling] == ["far too large"]
    assert spilling[0]["spill_store_bytes"] > 0 and spilling[0]["spill_load_bytes"] > 0
    assert spilling[0]["stack_bytes"] > 0


def test_every_variant_is_compiled_once(toys: dict[int, list[dict]]):
    assert [item["launched_by"] for item in toys[90]] == ["small", "another type", "four warps", "far too large"]
    for target, variants in toys.items():
        for item in variants:
            num_warps = 4 if item["launched_by"] == "four warps" else 1
            assert (item["target"], item["kernel"], item["num_warps"]) == (target, "_scaling_kernel", num_warps)
            # the sum is of all warps
            assert (item["num_barriers"] > 0) is (num_warps > 1)
        assert 0 < variants[0]["num_registers"] < 100
        assert variants[0]["spill_store_bytes"] == variants[0]["spill_load_bytes"] == 0


def variant(kernel: str, num_spilled: int) -> CompiledVariant:
    return CompiledVariant(90, kernel, "a call", 4, 96, 128, num_spilled, num_spilled, num_spilled, 2)


def test_complaints_are_spills_and_kernels_that_nothing_launched():
    variants = [variant("_one_kernel", 0), variant("_two_kernel", 8)]
    assert complaints(90, variants[:1], {"_one_kernel"}) == []
    found = complaints(90, variants, {"_one_kernel", "_two_kernel", "_three_kernel"})
    assert len(found) == 2
    assert found[0].startswith("sm_90 _two_kernel (a call): expected no register spills, found 8 bytes stored")
    assert found[1].startswith("sm_90 _three_kernel: expected a launch that compiles it, found none")


def test_shared_memory_that_a_generation_does_not_have_is_a_complaint():
    large = variant("_one_kernel", 0)._replace(shared_bytes=100 * 1024)
    assert complaints(90, [large], {"_one_kernel"}) == []
    (found,) = complaints(89, [large], {"_one_kernel"})
    assert found.startswith("sm_89 _one_kernel (a call): expected 101376 bytes of shared memory at most, found 102400")


def test_the_table_has_a_line_for_each_variant():
    above, *lines = to_text([variant("_one_kernel", 0), variant("_two_kernel", 8)]).splitlines()
    assert "target: sm_90" in above and "registers: 96" in above
    assert [line.split() for line in lines[-2:]] == [["_one_kernel", "0", "0", "0"], ["_two_kernel", "8", "8", "8"]]


def test_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(knobs.runtime, "interpret", True)
    with pytest.raises(RuntimeError, match="found TRITON_INTERPRET set"):
        compile_for(90, [])


def test_kernels_of_a_package_are_found(compiled: dict):
    found = set(compiled["kernels"])
    assert {"_logprobs_kernel", "_row_reduce_kernel", "_residual_sample_kernel"} <= found
    assert {"_add_rms_norm_kernel", "_slot_attention_kernel", "_combine_splits_kernel"} <= found


LAUNCHED = """
import json, sys
import kernels
from harness.checks.compile_check.core_calls import of_method
from harness.checks.compile_check.shares import shares_of
from harness.config.cli.methods import method_of
from harness.engine.compile_ahead.compile import kernels_in
from harness.engine.compile_ahead.variant import recorded
from harness.models import fused
from kernels.methods.hooks import hooks_of

method = method_of(sys.argv[1])
with recorded(90) as of_rule:
    calls = dict(of_method(method))
    for launch in calls.values():
        launch()
of_rule = [(item.kernel, repr(hooks_of(method)) in str(item.constants)) for item in of_rule]
with recorded(90) as found:
    for _, share in shares_of(False):
        for _, launch in share():
            launch()
expected = kernels_in(kernels) | kernels_in(fused)
missing = expected - {item.kernel for item in found} - {kernel for kernel, _ in of_rule}
print(json.dumps({"calls": list(calls), "of_rule": of_rule, "missing": sorted(missing)}))
"""


def test_calls_launch_every_kernel_and_all_that_a_rule_of_ones_own_makes_of_them(tmp_path: Path):
    """Would catch a new kernel that nothing compiles, before anything is compiled, and a check of the user's rule that
    compiles a built-in one in its place."""
    found = in_process_of_its_own(LAUNCHED, tmp_path, "tests.support.own_rules:Tempered")
    assert found["missing"] == []
    assert all(name.startswith("verify tests.support.own_rules:Tempered, ") for name in found["calls"])
    has_rule = {kernel for kernel, is_of_rule in found["of_rule"] if is_of_rule}
    assert has_rule == {"_row_reduce_kernel", "_truncated_rows_kernel", "_residual_sample_kernel"}


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


def test_what_a_change_compiles_is_part_of_the_full_list():
    """Would catch a launch that was renamed in the full list, and a share that ignores --all."""
    full, chosen = (
        [(target, name) for target, calls in shares_of(everything) for name, _ in calls()]
        for everything in (True, False)
    )
    assert {target for target, _ in full} == {FIRST_TARGET, *OTHER_TARGETS}
    assert set(chosen) == {(FIRST_TARGET, name) for name in CHOSEN} < set(full)


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


def test_a_stamp_spares_the_same_code_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Would catch a digest that misses a kernel's code, and a stamp that is left by a check with complaints."""
    for place in COMPILED:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / place).is_dir() else shutil.copy)(ROOT / place, tmp_path / place)
    stamp, checks, wrong = tmp_path / "stamp.json", [], ["spills"]
    found = [variant("_one_kernel", 0), variant("_one_kernel", 0)]
    monkeypatch.setattr(command, "CHECKOUT", tmp_path)
    monkeypatch.setattr(shares, "compile_all", lambda everything: (checks.append(everything), (found, wrong))[1])

    def codes() -> tuple[int, int]:
        return command.main(["--stamp", str(stamp)]), len(checks)

    assert codes() == (1, 1) and not stamp.exists()
    wrong.clear()
    assert codes() == (0, 2) and codes() == (0, 2)
    assert "2 variants of 1 kernels compiled before without a complaint" in capsys.readouterr().out
    kernel = tmp_path / "kernels" / "draw.py"
    kernel.write_text(kernel.read_text() + "\n# a remark\n")
    assert codes() == (0, 2)
    kernel.write_text(kernel.read_text() + "\nEPSILON = 1\n")
    assert codes() == (0, 3) and codes() == (0, 3)
    stamp.write_text(json.dumps(json.loads(stamp.read_text()) | {"triton": "3.6.0"}))
    assert codes() == (0, 4)


@pytest.mark.parametrize("content", ["{", "[]", '{"sources": "a"}', "1"])
def test_a_file_that_is_no_stamp_is_refused(tmp_path: Path, content: str, capsys):
    path = tmp_path / "stamp.json"
    path.write_text(content)
    assert command.main(["--stamp", str(path)]) == 1
    assert "stamp.json: expected the stamp of a compile check, found" in capsys.readouterr().err
    assert command.main(["--all", "--stamp", str(path)]) == 1
    assert "--stamp: expected no --all" in capsys.readouterr().err
