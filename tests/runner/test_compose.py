"""From conf/ and a command line to the cells of a plan, without a model."""

import unicodedata
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from harness.config.cell import UNIONS, CellConfig
from harness.config.constraint import PolicyKind
from harness.config.drafter import DrafterKind
from harness.config.run import RUN_UNIONS
from harness.config.schema import CONF, SettingsError, all_settings, group_options
from harness.runner.plan.compose import compose_plan
from harness.runner.plan.overrides import read_overrides
from kernels.methods import NAMED_METHODS, TreeMethod
from tests.support.prompt_files import write_lines

NEEDED = {
    **{
        ("target", shape): ["drafter.weights=random"]
        for shape in ("glm47_flash", "llama3_70b", "llama3_8b", "qwen3_8b")
    },
    ("target", "local"): ["target.path=owner/model"],
    ("workload", "jsonl"): [f"workload.path={Path(__file__)}"],
    ("workload", "json_schemas"): [f"workload.path={Path(__file__)}"],
    ("drafter", "dflash"): ["drafter.weights=random"],
    ("drafter", "dspark"): ["drafter.weights=random"],
    ("drafter", "dflash2"): ["drafter.weights=random"],
    ("drafter", "medusa"): ["drafter.weights=random"],
    ("drafter", "lookahead"): ["drafting.tree=dynamic:20-6-10", "verification=recursive"],
    ("drafter", "self_speculation"): ["drafter.skip_layers=[2]"],
    ("verification", "greedy"): ["decoding.temperature=0", "drafter=eagle3"],
    ("backend", "server"): ["server.url=http://host:1", "drafter=none"],
    **{
        ("server", engine): ["backend=server", "server.url=http://host:1", "drafter=none"]
        for engine in group_options()["server"]
    },
    **{("verification", method.value): ["drafting.tree=2-1"] for method in TreeMethod},
}
"""What an option needs beside itself."""
MT_BENCH = Path(__file__).parents[3] / "shared" / "data" / "mt_bench" / "question.jsonl"


def cells(*arguments):
    return compose_plan(arguments).cells


def summary(cell):
    return (
        cell.drafter.kind.value,
        cell.drafting.num_speculative_tokens,
        cell.decoding.temperature,
        cell.verification.method.value,
    )


def test_prompts_that_are_not_there_are_skipped_where_that_is_asked_for():
    with pytest.raises(SettingsError, match="expected a JSON Lines file, found none"):
        compose_plan(["workload.path=no/such/file.jsonl", "drafter=eagle"])
    there, missing = "builtin:reasoning_json.jsonl", "no/such/file.jsonl"
    plan = compose_plan(["experiment=reasoning_boundary", "workload=jsonl", f"workload.path={there},{missing}"])
    assert [reason for _, reason in plan.skipped] == [f"there is no file of prompts at {missing}"]
    assert {(cell.workload.path, cell.constraint.policy) for cell in plan.cells} == {
        (there, each) for each in PolicyKind if each is not PolicyKind.free_text
    }


@pytest.mark.parametrize(
    ("group", "option"),
    [(group, option) for group, options in group_options().items() if group != "experiment" for option in options],
)
def test_every_option_of_every_group_composes(group, option):
    drafter = [] if group == "drafter" else ["drafter=mtp"]
    needed = NEEDED.get((group, option), [])
    drafter = [item for item in drafter if not any(other.startswith("drafter=") for other in needed)]
    plan = compose_plan([f"{group}={option}", *needed, *drafter])
    chosen = plan if group == "launcher" else plan.cells[-1]
    if group in RUN_UNIONS and option in RUN_UNIONS[group].names:
        assert RUN_UNIONS[group].parts(getattr(chosen, group))[0] == option


def test_the_files_say_the_same_as_the_schema():
    assert cells() == (CellConfig(),)


def test_every_method_and_drafter_has_an_option():
    assert set(group_options()["verification"]) == set(NAMED_METHODS)
    kinds = {kind.value for kind in DrafterKind}
    options = set(group_options()["drafter"])
    assert kinds <= options
    for name in options - kinds:
        # a public head is of one of the kinds, and its own file says which
        fields = yaml.safe_load((CONF / "drafter" / f"{name}.yaml").read_text())
        assert fields["kind"] in kinds and name.endswith((fields["kind"], f"{fields['kind']}_angelslim"))
        assert fields["path"].count("/") == 1


def test_every_setting_is_documented():
    undocumented = [setting.key for setting in all_settings().values() if not setting.doc]
    assert not undocumented


def test_commas_are_a_product_in_the_stated_order():
    planned = cells(
        "verification=strict,block",
        "decoding.temperature=0.5,1",
        "drafting.num_speculative_tokens=1,3",
        "drafter=eagle,mtp",
        "measurement.baseline=false",
    )
    assert [summary(cell) for cell in planned] == [
        (drafter, num_tokens, temperature, method)
        for drafter in ("eagle", "mtp")
        for num_tokens in (1, 3)
        for temperature in (0.5, 1.0)
        for method in ("strict", "block")
    ]


def test_the_target_is_the_slowest():
    planned = cells("drafter=mtp,ngram", "target.path=owner/one,owner/two", "measurement.baseline=false")
    assert [cell.target.name for cell in planned] == ["one", "one", "two", "two"]


def test_the_command_line_replaces_the_same_key_of_the_experiment():
    planned = cells("experiment=quickstart", "drafter=eagle3", "decoding.temperature=0.7,0.9", "verification=strict")
    assert [summary(cell) for cell in planned if not cell.is_baseline] == [
        ("eagle3", 2, temperature, "strict") for _ in range(2) for temperature in (0.7, 0.9)
    ]


def test_values_of_the_command_line_win_over_the_experiment():
    planned = cells("experiment=methods", "verification=strict", "workload.num_prompts=3", "decoding.max_new_tokens=5")
    assert {(cell.workload.num_prompts, cell.decoding.max_new_tokens) for cell in planned} == {(3, 5)}


def test_a_single_cell_gets_its_baseline():
    assert [summary(cell)[0] for cell in cells("drafter=eagle3")] == ["none", "eagle3"]


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("drafting.num_speculative_tokens=range(1,4)", [1, 2, 3]),
        ("decoding.temperature=range(0,1,0.25)", [0, 0.25, 0.5, 0.75]),
        ("drafter=glob(eagle*)", ["eagle", "eagle3"]),
        ("verification.rates=[0.8,0.5],[0.9,0.4]", [[0.8, 0.5], [0.9, 0.4]]),
        ("workload.path=größe.jsonl,'a ö',zzzö", ["größe.jsonl", "a ö", "zzzö"]),
        ("workload.categories=[日本語],[öf6]", [["日本語"], ["öf6"]]),
        ("workload.path=[a.jsonl,7],b.jsonl", [["a.jsonl", "7"], "b.jsonl"]),
    ],
    ids=[
        "range",
        "range of numbers",
        "glob",
        "lists",
        "letters that Hydra's grammar does not have",
        "lists of them",
        "files together and alone",
    ],
)
def test_ranges_globs_and_lists_are_sweeps_too(argument, values):
    given = read_overrides([argument])
    assert [(item.values, item.is_sweep) for item in given.values()] == [(tuple(values), True)]


def test_one_list_of_synthetic_rates_serves_every_depth_and_each_cell_records_its_own():
    depths = "drafting.num_speculative_tokens=1,3"
    planned = cells("drafter=mtp", "verification=synthetic", "verification.rates=[0.8,0.5,0.3,0.1]", depths)
    assert [cell.verification.rule.rates for cell in planned if not cell.is_baseline] == [(0.8,), (0.8, 0.5, 0.3)]


def test_cells_that_differ_only_in_ignored_settings_are_one():
    planned = cells("drafter=none,mtp", "verification=strict,lenient", "verification.leniency=0.5,0.9")
    assert [(cell.drafter.kind.value, cell.verification.method.value) for cell in planned] == [
        ("none", "probabilistic"),
        ("mtp", "strict"),
        ("mtp", "lenient"),
        ("mtp", "lenient"),
    ]


def methods(*arguments):
    return [cell.verification for cell in cells("drafter=mtp", *arguments) if not cell.is_baseline]


def test_an_axis_is_swept_by_the_members_that_have_it():
    """Would catch a product of axes that a method lacks, and a parameter that another method of the sweep takes."""
    found = methods("verification=fly,lenient,block", "verification.window_size=1,2", "verification.leniency=0.5,0.9")
    assert [(item.method.value, *item.rule.parameters.values()) for item in found] == [
        *(("fly", window, 0.3, 3) for window in (1, 2)),
        *(("lenient", leniency) for leniency in (0.5, 0.9)),
        ("block",),
    ]


def test_a_file_may_sweep_what_only_some_members_have():
    """Would catch an experiment that cannot be narrowed to one of its methods."""
    found = compose_plan(["experiment=lossy_tradeoff", "backend.device=cuda", "verification=lenient"]).cells
    assert [cell.verification.method.value for cell in found if not cell.is_baseline] == ["lenient"] * 4


def test_the_name_of_a_member_is_its_group():
    (found,) = methods("verification.method=lenient")
    assert found == methods("verification=lenient")[0] and found.rule.leniency == 0.8


def test_every_method_with_parameters_has_settings_for_them():
    listed = {f"verification.{name}" for method in NAMED_METHODS.values() for name in method.kind.settings()}
    there = {key: setting for key, setting in all_settings().items() if key.startswith("verification.")}
    assert listed == there.keys() - {"verification.method"}
    assert there["verification.window_size"].members == ("fly",) and there["verification.window_size"].optional


def test_a_prompt_file_is_taken_without_an_experiment():
    if not MT_BENCH.is_file():
        pytest.skip(f"needs {MT_BENCH.name} of MT-Bench beside the repository")
    plan = compose_plan([f"workload.path={MT_BENCH}", "drafter=eagle3"])
    assert [summary(cell)[0] for cell in plan.cells] == ["none", "eagle3"]
    assert plan.is_unnamed and plan.folder == Path("results/runs") / plan.name


def test_several_files_are_the_prompts_of_one_cell(tmp_path):
    """Would catch a list that becomes a sweep, or whose files are not looked for before work."""
    there = [str(write_lines(tmp_path / name, "Hello")) for name in ("a.jsonl", "b.jsonl")]
    (cell,) = compose_plan(["drafter=none", f"workload.path=[{','.join(there)}]"]).cells
    assert cell.workload.paths == tuple(there)
    with pytest.raises(SettingsError, match=r"workload\.path: expected a JSON Lines file, found none at '.*c\.jsonl'"):
        compose_plan(["drafter=none", f"workload.path=[{there[0]},{tmp_path / 'c.jsonl'}]"])


def test_name_and_folder_can_be_given():
    assert compose_plan(["experiment=methods", "name=mine", "verification=strict"]).folder == Path("results/runs/mine")
    assert compose_plan(["output.folder=elsewhere/x"]).folder == Path("elsewhere/x")


@pytest.mark.parametrize("name", ["größe", '"größe"', unicodedata.normalize("NFD", "größe")])
def test_a_name_may_have_any_letters(name):
    """Would catch a grammar of ASCII alone, and two folders for one name that is typed in two ways."""
    plan = compose_plan([f"name={name}", "title=Größe"])
    assert (plan.name, plan.title, plan.folder) == ("größe", "Größe", Path("results/runs/größe"))


def test_the_plan_carries_a_command_that_can_be_pasted():
    plan = compose_plan(["drafter=mtp", "title='two words'"])
    assert plan.command == """rejection-lab run drafter=mtp 'title='"'"'two words'"'"''"""
    assert plan.title == "two words"


def test_cells_are_typed_objects():
    chosen = cells("drafter=mtp")[-1]
    for item in fields(CellConfig):
        expected = UNIONS[item.name].kind if item.name in UNIONS else type(getattr(CellConfig(), item.name))
        assert isinstance(getattr(chosen, item.name), expected)
