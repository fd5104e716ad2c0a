"""The command line: the program and its commands, flags made of a dataclass, their help and their mistakes."""

import io
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path

import pytest
import torch

from experiments import __main__ as program
from experiments import agreement, bench_kernels, bench_reasoning, certify
from harness.checks.agreement.config import AgreementConfig
from harness.checks.certification.config import CertifyConfig
from harness.checks.kernel_bench.config import BenchConfig
from harness.checks.profiling.reasoning_config import ReasoningCostConfig
from harness.config.cli.command_line import CommandParser, say
from harness.config.device import Device, resolve_device
from harness.config.schema import SettingsError, check_seed, settings_of
from tests.support.own_process import output_of

ROOT = Path(__file__).parents[2]
WITH_FLAGS = pytest.mark.parametrize(
    ("command", "schema", "prefix"),
    [
        pytest.param(agreement, AgreementConfig, "agreement", id="agreement"),
        pytest.param(bench_kernels, BenchConfig, "bench", id="bench"),
        pytest.param(bench_reasoning, ReasoningCostConfig, "cost", id="bench-reasoning"),
        pytest.param(certify, CertifyConfig, "certify", id="certify"),
    ],
)


class Colour(Enum):
    red = "#f00"
    green = "#0f0"


@dataclass(frozen=True)
class Paint:
    colour: Colour = Colour.red
    """Of the wall."""
    num_layers: int = 2
    """How often."""
    wet: bool = False
    """Whether it drips."""
    name: str = ""
    """Of the tin, 100% of them."""
    rooms: tuple[str, ...] = ("kitchen", "hall")
    """Where."""
    sheens: tuple[float, ...] = ()
    """How it shines."""


def parser() -> CommandParser:
    made = CommandParser("paint", "Paint a wall.\n\nexamples:\n  rejection-lab paint")
    made.add_settings(Paint, "paint")
    return made


def read(*arguments: str) -> Paint:
    settings: Paint = parser().parse(arguments).settings
    return settings


def test_every_type_of_field_is_read_and_what_is_not_given_is_the_default():
    assert read() == Paint()
    found = read("--colour", "green", "--num-layers=3", "--wet", "--name=a=b", "--rooms", "hall, den", "--sheens=0.5,2")
    assert found == Paint(Colour.green, 3, True, "a=b", ("hall", "den"), (0.5, 2.0))
    assert read("--rooms=").rooms == ()


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e6", 10**6), ("1_000_000", 10**6), ("1.5e3", 1500), ("-4", -4), (str(2**53 + 1), 2**53 + 1)],
)
def test_whole_numbers_are_read_exactly(text: str, number: int):
    """Would catch a way through float, which loses the last digit of 2^53 + 1."""
    assert read(f"--num-layers={text}").num_layers == number


@pytest.mark.parametrize("text", ["1.5e0", "1e-3", "many", "", "nan", "inf", "1e999999999", "1e30", "9" * 9999])
def test_what_is_no_whole_number_of_64_bits_is_refused_and_not_rounded(text: str):
    with pytest.raises(SettingsError, match=r"^--num-layers: expected"):
        read(f"--num-layers={text}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--color=red"], "unknown option --color (did you mean --colour?)"),
        (["wall"], "expected options, found wall"),
        (["--colour=gren"], "--colour: expected one of red, green, found 'gren' (did you mean green?)"),
        (["--colour=#f00"], "--colour: expected one of red, green, found '#f00'"),
        (["--sheens=0.5,x"], "--sheens: expected a list of numbers such as 0.8,0.6, found '0.5,x'"),
        (["--rooms=hall,,den"], "--rooms: expected a list such as first,second, found 'hall,,den'"),
    ],
)
def test_a_wrong_argument_is_one_line_that_says_what_is_expected(arguments: list[str], message: str):
    with pytest.raises(SettingsError, match=re.escape(message)) as error:
        read(*arguments)
    assert "\n" not in str(error.value)


def test_arguments_of_the_earlier_form_are_read_with_a_note(capsys):
    """Would catch scripts of the last version that break, or a truth value that is read as its opposite."""
    old = ("paint.colour=green", "paint.num_layers=3", "paint.wet=true", "paint.rooms=[hall,den]")
    assert read(*old) == Paint(Colour.green, 3, True, rooms=("hall", "den")) and not read("paint.wet=false").wet
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 5 and "paint.wet=true is deprecated; write --wet" in notes[2] and "--no-wet" in notes[4]
    with pytest.raises(SettingsError, match="did you mean --colour"):
        read("paint.color=red")


def test_help_shows_meaning_default_and_choices(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    assert parser().call(lambda options: pytest.fail("ran"), ["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "usage: rejection-lab paint [options] Paint a wall.",
        "--colour {red,green} Of the wall. (default: red)",
        "--wet, --no-wet Whether it drips. (default: false)",
        "--name TEXT Of the tin, 100% of them. --rooms A,B Where. (default: kitchen,hall)",
        "examples: rejection-lab paint",
    ):
        assert words in text


@WITH_FLAGS
def test_every_setting_of_a_command_is_in_its_help_and_has_a_meaning(command, schema, prefix, capsys):
    assert command.main(["--help"]) == 0
    text = capsys.readouterr().out
    settings = list(settings_of(schema, ""))
    assert not [item.key for item in settings if f"  --{item.key.replace('_', '-')}" not in text]
    assert not [item.key for item in settings if not item.doc]


@WITH_FLAGS
def test_settings_reach_the_run_its_result_is_the_exit_code_and_an_error_is_one_line(
    command, schema, prefix, monkeypatch, capsys
):
    """Would catch a command that runs with its defaults, or that ends well whatever its run has found."""
    found = []
    monkeypatch.setattr(command, "run", lambda config, *others: found.append(config) or 1)
    assert command.main(["--output", "elsewhere"]) == command.main([f"{prefix}.output=elsewhere"]) == 1
    assert found == [schema(output="elsewhere")] * 2

    def fail(config, *others):
        raise ValueError("no such core")

    monkeypatch.setattr(command, "run", fail)
    capsys.readouterr()
    assert command.main([]) == 1 and capsys.readouterr().err == "error: no such core\n"
    with pytest.raises(ValueError, match="no such core"):
        command.main(["--debug"])


@pytest.mark.parametrize("command", [agreement, bench_kernels, certify])
def test_a_seed_that_leaves_no_room_is_refused_before_anything_runs(command, capsys):
    """Would catch an overflow in the middle of a run: cells and requests have seeds made of this one."""
    for seed in ("4294967296", "-1"):
        assert command.main([f"--seed={seed}"]) == 2
        assert "seed: expected 0 to 4294967295, found" in capsys.readouterr().err
    check_seed(2**32 - 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="only where there is no GPU")
def test_a_gpu_that_is_not_there_is_refused():
    for choice in (Device.auto, Device.cpu):
        assert resolve_device(choice.value, "--device") == torch.device("cpu")
    with pytest.raises(SettingsError, match=r"^--device: expected a GPU"):
        resolve_device("cuda", "--device")


def test_a_terminal_breaks_what_is_told_between_words_and_a_file_has_it_whole(monkeypatch):
    """Would catch notes that a terminal breaks within words, and lines of a log that grep finds half of."""
    told = f"note: {'some words ' * 20}{'path/' * 20}file"
    monkeypatch.setenv("COLUMNS", "60")
    for is_terminal in (True, False):
        stream = io.StringIO()
        stream.isatty = lambda is_terminal=is_terminal: is_terminal
        monkeypatch.setattr("sys.stderr", stream)
        say(told)
        *lines, last = stream.getvalue().splitlines()
        assert " ".join(line.strip() for line in [*lines, last]) == told
        assert max(map(len, lines), default=0) <= 60 and bool(lines) is is_terminal


def test_the_console_script_is_the_program():
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert script == {"rejection-lab": f"{program.__name__}:{program.main.__name__}"}


def test_the_overview_and_the_help_of_every_command_come_without_heavy_imports():
    """Would catch a list of commands that takes as long as loading PyTorch, and a command that is not listed."""
    code = (
        "import sys; from experiments.__main__ import COMMANDS, main\n"
        "assert main([]) == main(['--help']) == 0\n"
        "assert [name for name in sys.modules if name.startswith('experiments.')] == ['experiments.__main__']\n"
        "for name in COMMANDS: assert main([name, '--help']) == 0\n"
        "assert not {'torch', 'hydra', 'pandas', 'transformers'} & set(sys.modules)"
    )
    shown = output_of(code)
    for name in program.COMMANDS:
        assert re.search(rf"^  {name} +[A-Z].*\.$", shown, re.M) and f"usage: rejection-lab {name} [options]" in shown
    assert max(map(len, shown.splitlines())) <= 120


def test_an_unknown_command_is_one_line_with_a_hint(capsys):
    assert program.main(["certfy"]) == 2
    assert re.fullmatch(r"error: unknown command 'certfy' \(did you mean certify\?\).*\n", capsys.readouterr().err)


def test_names_of_an_earlier_version_are_aliases(capsys):
    assert program.main(["again", "--help"]) == 0
    assert "usage: rejection-lab reproduce" in capsys.readouterr().out
    old = [sys.executable, "-m", "experiments.boundary_cost", "--help"]
    done = subprocess.run(old, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "use rejection-lab bench-reasoning" in done.stderr and "usage: rejection-lab bench-reasoning" in done.stdout


@pytest.mark.parametrize("name", sorted(program.COMMANDS))
def test_examples_in_the_help_name_options_and_settings_that_exist(name, monkeypatch):
    """Would catch an example that names what is gone. Variables, pipes and comments may stand around a command."""
    doc = import_module(f"experiments.{program.COMMANDS[name]}").__doc__
    lines = doc.partition("\nexamples:\n")[2].replace("\\\n", " ").splitlines()
    assert lines
    from harness.runner.plan.overrides import read_overrides

    for line in lines:
        words = shlex.split(line.rpartition("|")[2].partition(">")[0])
        words = words[next(index for index, word in enumerate(words) if word == "rejection-lab") + 1 :]
        parsed = []

        def call(parser, run, arguments, wrong_input=1, parsed=parsed):
            parsed.append(parser.parse(arguments))
            return 0

        monkeypatch.setattr(CommandParser, "call", call)
        assert program.main(words) == 0
        read_overrides([item for item in parsed[0].overrides if "=" in item])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rejection-lab ag", ["agreement "]),
        ("rejection-lab certify --sub", ["--subject "]),
        ("rejection-lab run drafter=ea", ["eagle ", "eagle3 "]),
        ("rejection-lab run experiment=quickstart verification.meth", ["verification.method="]),
        ("rejection-lab nothing --x", []),
    ],
)
def test_bash_is_answered_with_what_may_follow(line, expected, monkeypatch, capsys):
    monkeypatch.setenv("COMP_LINE", line)
    assert program.main(["rejection-lab", "", ""]) == 0
    assert capsys.readouterr().out.splitlines() == expected
