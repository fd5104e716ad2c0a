"""The parser of `prefix.setting=value` arguments, its messages, and the help that is made of the same dataclass."""

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest
import torch

from experiments import agreement, bench_kernels, bench_reasoning, certify
from harness.agreement.config import AgreementConfig
from harness.certification.config import CertifyConfig
from harness.cli.arguments import check_known, check_seed, read_plain_settings
from harness.cli.command_line import plain_settings_help
from harness.kernel_bench.config import BenchConfig
from harness.profiling.reasoning_config import BoundaryCostConfig
from harness.settings.device import Device, chosen_device
from harness.settings.schema import SettingsError, settings_of

EVERY_COMMAND = pytest.mark.parametrize(
    ("command", "schema", "prefix"),
    [
        pytest.param(agreement, AgreementConfig, "agreement", id="agreement"),
        pytest.param(bench_kernels, BenchConfig, "bench", id="bench_kernels"),
        pytest.param(bench_reasoning, BoundaryCostConfig, "cost", id="bench_reasoning"),
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
    layers: int = 2
    """How often."""
    wet: bool = False
    """Whether it drips."""
    name: str = ""
    """Of the tin."""
    rooms: tuple[str, ...] = ("kitchen", "a hall with a long name to break the line")
    """Where."""
    sheens: tuple[float, ...] = ()
    """How it shines."""


def read(*arguments: str) -> Paint:
    return read_plain_settings(Paint, "paint", arguments)


def test_what_is_not_given_is_the_default():
    assert read() == Paint()


def test_every_type_of_field_is_read():
    found = read("paint.colour=green", "paint.layers=3", "paint.wet=true", "paint.name=a=b", "paint.rooms=hall, den")
    assert found == Paint(Colour.green, 3, True, "a=b", ("hall", "den"))
    assert read("paint.sheens=[0.5, 2]").sheens == (0.5, 2.0)
    assert read("paint.rooms=").rooms == read("paint.rooms=[]").rooms == ()


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e6", 10**6), ("1_000_000", 10**6), ("1.5e3", 1500), ("-4", -4), ("2", 2), (str(2**53 + 1), 2**53 + 1)],
)
def test_whole_numbers_are_read_exactly(text: str, number: int):
    """Would catch a way through float, which loses the last digit of 2^53 + 1."""
    assert read(f"paint.layers={text}").layers == number


@pytest.mark.parametrize("text", ["1.5e0", "1e-3", "1.5", "many", "", "nan", "inf", "1e999999999"])
def test_what_is_no_whole_number_is_refused_and_not_rounded(text: str):
    with pytest.raises(SettingsError, match=rf"^paint\.layers: expected a whole number, found '{re.escape(text)}'$"):
        read(f"paint.layers={text}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["paint.color=red"], "unknown setting 'paint.color' (did you mean paint.colour?); there are paint.colour,"),
        (["layers=2"], "unknown setting 'layers' (did you mean paint.layers?)"),
        (["other.layers=2"], "unknown setting 'other.layers'"),
        (["paint.wet"], "expected paint.setting=value, found 'paint.wet'"),
        (["paint.layers=1", "paint.layers=1"], "paint.layers is given twice; give it once"),
        (["paint.colour=gren"], "paint.colour: expected one of red, green, found 'gren' (did you mean green?)"),
        (["paint.colour=#f00"], "paint.colour: expected one of red, green, found '#f00'"),
        (["paint.wet=True"], "paint.wet: expected true or false, found 'True'"),
        (["paint.sheens=0.5,x"], "paint.sheens: expected a list of numbers such as 0.8,0.6, found '0.5,x'"),
        (["paint.rooms=hall,,den"], "paint.rooms: expected a list such as first,second, found 'hall,,den'"),
    ],
    ids=["name", "prefix", "other prefix", "no value", "twice", "choice", "value", "truth", "numbers", "gap"],
)
def test_a_wrong_argument_is_one_line_that_says_what_is_expected(arguments: list[str], message: str):
    with pytest.raises(SettingsError, match=re.escape(message)) as error:
        read(*arguments)
    assert "\n" not in str(error.value)


def test_names_that_are_not_known_are_found_with_a_hint():
    check_known("paint.rooms", ("hall", "den"), ("den", "hall", "attic"))
    with pytest.raises(SettingsError, match=r"some of den, hall, found 'hal' \(did you mean hall\?\)$"):
        check_known("paint.rooms", ("den", "hal"), ("den", "hall"))


@pytest.mark.parametrize(
    "setting", ["agreement.seed=4294967296", "bench.seed=-1", "certify.seed=1e12"], ids=lambda item: item.split(".")[0]
)
def test_a_seed_that_leaves_no_room_is_refused_before_anything_runs(setting: str, capsys):
    """Would catch an overflow in the middle of a run: cells and requests have seeds made of this one."""
    command = {"agreement": agreement, "bench": bench_kernels, "certify": certify}[setting.split(".", maxsplit=1)[0]]
    assert command.main([setting]) == 2
    assert "seed: expected 0 to 4294967295, found" in capsys.readouterr().err


def test_the_largest_seed_is_allowed():
    check_seed("paint.seed", 2**32 - 1)


def test_help_shows_default_meaning_and_choices(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert plain_settings_help(Paint, "paint").splitlines() == [
        "settings, with what they are unless given:",
        "  paint.colour=red  Of the wall. One of red, green.",
        "  paint.layers=2    How often.",
        "  paint.wet=false   Whether it drips.",
        "  paint.name=       Of the tin.",
        "  paint.rooms=kitchen,a hall with a long name to break the line",
        "                    Where.",
        "  paint.sheens=     How it shines.",
    ]


@EVERY_COMMAND
def test_every_setting_of_a_command_is_in_its_help_and_has_a_meaning(command, schema, prefix, capsys):
    assert command.main(["--help"]) == 0
    text = capsys.readouterr().out
    settings = list(settings_of(schema, f"{prefix}."))
    assert not [item.key for item in settings if f"  {item.key}=" not in text]
    assert not [item.key for item in settings if not item.doc]


@EVERY_COMMAND
def test_a_wrong_setting_of_a_command_is_one_line_and_exit_code_2(command, schema, prefix, capsys):
    assert command.main([f"{prefix}.outptu=elsewhere"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: unknown setting '{prefix}.outptu' (did you mean {prefix}.output?)")
    assert error.count("\n") == 1


@EVERY_COMMAND
def test_the_settings_that_are_given_reach_the_run_and_its_result_is_the_exit_code(
    command, schema, prefix, monkeypatch, capsys
):
    """Would catch a command that runs with its defaults, or that ends well whatever its run has found."""
    found = []
    monkeypatch.setattr(command, "run", lambda config: found.append(config) or 1)
    assert command.main([f"{prefix}.output=elsewhere"]) == 1
    assert found == [schema(output="elsewhere")]

    def fail(config):
        raise ValueError("no such core")

    monkeypatch.setattr(command, "run", fail)
    assert command.main([]) == 1 and capsys.readouterr().err == "error: no such core\n"
    with pytest.raises(ValueError, match="no such core"):
        command.main(["--debug"])


@EVERY_COMMAND
def test_examples_in_the_help_are_read(command, schema, prefix):
    """Would catch an example that names a setting which is gone. Variables of the environment may stand in front."""
    examples = [line.split() for line in command.EXAMPLES.replace("\\\n", " ").splitlines()[1:]]
    assert examples
    for line in examples:
        words = line[next(index for index, word in enumerate(line) if "=" not in word) :]
        assert words[:3] == ["python", "-m", f"experiments.{Path(command.__file__).stem}"]
        read_plain_settings(schema, prefix, words[3:])


@pytest.mark.skipif(torch.cuda.is_available(), reason="only where there is no GPU")
def test_a_gpu_that_is_not_there_is_refused():
    for choice in (Device.auto, Device.cpu):
        assert chosen_device(choice, "paint.device") == torch.device("cpu")
    with pytest.raises(SettingsError, match=r"^paint\.device: expected a CUDA device for paint\.device=cuda, found"):
        chosen_device(Device.cuda, "paint.device")
