"""What composition refuses, before anything else and in one line, and what it takes although some cells ignore it."""

import re

import pytest

from harness.config import schema as settings
from harness.config.drafter import drafter_of
from harness.config.schema import CONF, SettingsError, all_settings, group_options
from harness.config.usage import USED_ONLY_WITH
from harness.models.zoo import ZOO
from harness.runner.plan import compose as compose_module
from harness.runner.plan.compose import compose_plan
from tests.runner.test_compose import cells, summary

RUNNING = "backend=server server=vllm server.url=http://127.0.0.1:1"
"""One server that was started before, with one drafter and one method."""


def test_combinations_without_meaning_stop_before_anything_else_and_are_listed():
    with pytest.raises(SettingsError) as caught:
        cells("drafter=ngram,mtp", "verification=strict,pr35461,greedy")
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("3 of 6 combinations are invalid")
    assert "    drafter=ngram verification=pr35461" in lines
    assert "    drafter=mtp verification=greedy" in lines
    assert any("defined only at decoding.temperature=0" in line for line in lines)


def test_combinations_without_meaning_can_be_skipped_and_are_kept_with_the_reason():
    plan = compose_plan(["drafter=ngram,mtp", "verification=strict,pr35461", "invalid_cells=skip"])
    assert [(dict(point), reason[:20]) for point, reason in plan.skipped] == [
        ({"drafter": "ngram", "verification": "pr35461"}, "verification=pr35461")
    ]
    assert [summary(cell)[0] for cell in plan.cells] == ["none", "ngram", "mtp", "mtp"]


def test_a_run_of_nothing_but_skipped_cells_is_an_error():
    with pytest.raises(SettingsError, match="2 of 2 combinations are invalid"):
        cells("drafter=mtp", "verification=greedy", "decoding.temperature=0.5,1", "invalid_cells=skip")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "drafter=eagel3",
            "drafter=eagel3: no such option (did you mean eagle3?); choices: dflash, dflash2, draft_model, dspark, ",
        ),
        ("verification=strict,a.b:rule", "verification.method: expected an object PACKAGE.MODULE:NAME"),
        ("drafter=a.b:Own", "drafter.kind: expected an object PACKAGE.MODULE:NAME that can be imported"),
        ("K=3", "(did you mean drafting.num_speculative_tokens?)"),
        ("verification=strict,", "write no space after the comma"),
        ("drafter.pat=x", "unknown setting 'drafter.pat' (did you mean drafter.path?); drafter has kind, path, "),
        ("temperature=0", "unknown setting 'temperature' (did you mean decoding.temperature?)"),
        ("draftr=mtp", "unknown setting 'draftr' (did you mean drafter?)"),
        ("decoding.temperature=warm", "decoding.temperature: expected a number, found warm"),
        ("drafting.num_speculative_tokens=1,2.5", "num_speculative_tokens: expected a whole number, found 2.5"),
        ("decoding.ignore_eos=perhaps", "decoding.ignore_eos: expected true or false, found perhaps"),
        ("verification.method=blok", "NAME, found blok (did you mean block?)"),
        ("workload.categories=math", "workload.categories: expected a list such as [first,second], found math"),
        ("seed=null", "seed: expected a whole number, found null"),
        ("eagle3", "expected setting=value or group=option, found 'eagle3' (did you mean drafter=eagle3?)"),
        ("+drafter=mtp", "every setting exists already; write drafter=value"),
        ("seed=1 seed=2", "seed is given twice"),
        ("sweep=1", "sweep is for experiment files"),
        ("without_gpu.seed=1", "without_gpu.seed is for experiment files"),
        ("reference=strict,block", "reference is one for the whole run"),
        ("experiment=quickstart,methods", "experiment is one for the whole run, found 2 values: quickstart, methods"),
        ("measurement.num_blocks=1,2", "measurement.num_blocks is one for the whole run"),
        ("decoding.temperature=interval(0,1)", "an interval has no list of values"),
        ("workload.path=a(b", "put quotes around a value with special characters"),
        ("drafting.tree=[-1,-1,0", "close the bracket: 'drafting.tree=[-1,-1,0]'"),
        ("decoding.temperature=-1", "decoding.temperature: expected 0, or a positive number"),
        ("backend.weight_dtype=fp4", "backend.weight_dtype: expected auto or fp8, found fp4"),
        (f"{RUNNING} drafter=none backend.kv_cache_dtype=fp8", "used only with backend=local"),
        (
            "target=glm47_flash drafter=none backend.weight_dtype=fp8",
            "a target of type llama or qwen3, found 'glm4_moe",
        ),
        ("target=glm47_flash drafter=none backend.kv_cache_dtype=fp8", "use backend.kv_cache_dtype=auto"),
        ("verification.method=fly verification=block", "verification is given twice"),
        (
            "verification=fly verification.windo_size=1",
            "(did you mean verification.window_size?); verification has ",
        ),
        ("verification=fly verification.window_size=1.5", "window_size: expected a whole number, or null, found 1.5"),
        ("verification=typical verification.epsilon=2", "verification: epsilon must lie in (0, 1], found 2.0"),
        ("drafter=mtp verification=greedy", "verification=greedy is defined only at decoding.temperature=0"),
        ("workload=jsonl", "workload.path: expected a JSON Lines file (workload.path=FILE), found nothing"),
        ("workload.path=not_there.jsonl", "workload.path: expected a JSON Lines file, found none at 'not_there.jsonl'"),
        ("target.path=./not/there drafter=eagle workload.path=not_there.jsonl", "target.path: expected a folder or"),
        ("target.shape=llama3_7 target.weights=random drafter=eagle,mtp", "target.shape: expected one of deepseek_v3"),
        (
            "target.path=./not/there",
            "target.path: expected a folder or a Hugging Face id (owner/name), found no folder",
        ),
        ("drafter=mtp target.path=a/same,b/same", "target.name: expected a label of its own for each target"),
        ("verification.rates=[0.5,nan] verification=synthetic", "must lie in [0, 1] and not increase"),
        ("drafter.ngram_max=3 drafter=eagle3", "drafter.ngram_max: expected a setting that some cell of the run uses"),
        ("drafter=mtp verification=strict verification.epsilon=0.1", "used only with verification=typical; leave"),
        ("drafter=mtp,ngram verification=strict,block verification.leniency=0.5,1", "only with verification=lenient"),
        ("drafter=mtp verification.length=null", "used only with verification=synthetic"),
        ("drafter=none verification.epsilon=0.1 drafter.path=a/b", "drafter.path: expected a setting"),
        (
            "drafter=ngram drafting.depth=confidence:0.3",
            "with a drafter that is a model, such as drafter=eagle3, where it is a confidence",
        ),
        ("drafter=ngram drafter.path=a/b", "used only with a drafter that is a model"),
        ("drafter=mtp drafter.revision=main", "used only with drafter.path"),
        ("target.revision=main", "used only with target.path"),
        (
            f"target.path={ZOO / 'target'} drafter=ngram target.revision=main",
            "expected none with a local folder, found 'main'",
        ),
        (
            f"drafter=eagle drafter.path={ZOO / 'eagle'} drafter.revision=v1",
            "drafter.revision: expected none with a local",
        ),
        ("workload.split=train", "used only with workload.dataset (workload=hf)"),
        ("workload.column=text", "workload.column: expected a setting"),
        ("workload.subset=main", "workload.subset: expected a setting"),
        ("workload.layout=gsm8k", "used only with workload.path"),
        ("workload.prompt_tokens=128", "workload.prompt_tokens: expected workload.num_turns=1 beside it"),
        ("target.shape=llama3_7b target.weights=random", "llama32_1b, llama3_70b, llama3_8b, mistral_7b, "),
        ("target.shape=qwen3_8 target.weights=random", "found qwen3_8 (did you mean qwen3_8b?)"),
        ("target.shape=llama3_8b", "expected target.weights=random beside it: a shape has no weights"),
        ("target.weights=randm", "target.weights: expected one of checkpoint, random, found randm (did you mean"),
        ("target=llama3_8b drafter=eagle", "needs drafter.path, or drafter.weights=random"),
        (
            "drafter=ngram drafter.weights=random",
            "used only with drafter=eagle, eagle3, mtp, peagle, dflash, dspark, dflash2, medusa or draft_model",
        ),
        ("drafter=eagle drafter.weights=random drafter.shape=qwen3_06b", "used only with drafter=draft_model"),
        ("drafter=mtp drafter.weights=random drafter.path=a/b", "other than an MTP layer of random weights"),
        (
            "drafter=mtp verification=synthetic verification.profile=round_eagle_k3",
            "found rates, tree_rates, profile; clear the others",
        ),
        (
            "drafter=mtp verification=synthetic verification.rates=[] verification.profile=round_eagle3_k5",
            "round_eagle3_k5 holds for drafting.num_speculative_tokens=5 alone, because the rate of a position depends",
        ),
        (f"{RUNNING} drafter=eagle3", "found drafter=eagle3, K = 4; no drafter (the baseline); give a server"),
        (f"{RUNNING} drafter=eagle3 drafting.num_speculative_tokens=2,3 measurement.baseline=false", "K = 2; drafter="),
        (f"{RUNNING} drafter=eagle3 verification=block,probabilistic measurement.baseline=false", "found block; prob"),
        (
            f"{RUNNING} drafter=eagle3 verification=probabilistic drafting.sampling=sampled,greedy "
            "measurement.baseline=false",
            "expected one drafting.sampling, what the server at http://127.0.0.1:1 was started with, found sampled",
        ),
        ("decoding.min_tokens=2 decoding.ignore_eos=true", "used only with decoding.ignore_eos=false"),
        (
            "decoding.min_tokens=2 constraint=mask workload=reasoning_json",
            "decoding.min_tokens: expected 0 with a gram",
        ),
        (
            "backend=server server=vllm server.url=http://127.0.0.1:1 drafter=eagle3 measurement.baseline=false "
            "decoding.logit_bias=5:-100",
            "refuses it beside drafts, found logit_bias=5:-100; server.engine=vllm",
        ),
        (
            "backend=server server=plain server.url=http://127.0.0.1:1 decoding.presence_penalty=0.5",
            "expected the default of presence_penalty with a server that has no such parameter",
        ),
        ("verification=block", "verification: expected a setting that some cell of the run uses"),
        ("drafting.num_speculative_tokens=1,3", "used only with a drafter, such as drafter=eagle3"),
        ("name=a/b", "name: expected letters, digits"),
        ("output.folder=pyproject.toml", "output.folder: expected a folder, found a file"),
    ],
)
def test_a_wrong_name_or_value_gets_one_line(arguments, message, monkeypatch):
    monkeypatch.chdir(CONF.parent)
    with pytest.raises(SettingsError) as caught:
        cells(*arguments.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def conf(tmp_path, monkeypatch):
    """A copy of conf/ that is composed in its place."""
    for path in CONF.rglob("*.yaml"):
        copy = tmp_path / path.relative_to(CONF)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(path.read_text())
    for module in (settings, compose_module):
        monkeypatch.setattr(module, "CONF", tmp_path)
    group_options.cache_clear()
    yield tmp_path
    group_options.cache_clear()


def test_a_file_that_has_changed_is_read_again(conf):
    """Would catch a notebook that runs the settings of an hour ago, and a run that changes those of the next."""
    mine = conf / "experiment" / "mine.yaml"
    for depth in (3, 12, 5):
        mine.write_text(f"# @package _global_\ndrafting: {{num_speculative_tokens: {depth}}}\n")
        for given, expected in (((), depth), (("drafting.num_speculative_tokens=7",), 7), ((), depth)):
            assert cells("experiment=mine", "drafter=eagle3", *given)[-1].drafting.num_speculative_tokens == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("drafter: {pat: x}", "drafter: expected settings of it, found pat (did you mean path?); there are kind, "),
        ("decoding: {temperature: warm}", "Value 'warm' of type 'str' could not be converted to Float"),
        ("sweep: {drafter: [eagel3]}", "mine.yaml: sweep: drafter=eagel3: no such option (did you mean eagle3?)"),
        ("sweep: {decoding.temperature: 1}", "mine.yaml: sweep of decoding.temperature: expected a list, found 1"),
        ("without_gpu: {seed: [1, 2]}", "mine.yaml: without_gpu: seed: expected a whole number, found [1, 2]"),
        ("without_gpu: {sed: 1}", "mine.yaml: without_gpu: unknown setting 'sed' (did you mean seed?)"),
        ("sweep: {seed: []}", "mine.yaml: sweep: seed: expected at least one value, found none"),
        ("sweep: {drafter: [", "while parsing"),
        ("verification: {epsilom: 0.1}", "found epsilom (did you mean epsilon?); there are method, acc, "),
    ],
)
def test_a_mistake_in_an_experiment_file_gets_one_line(content, message, conf):
    (conf / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{content}\n")
    with pytest.raises(SettingsError) as caught:
        cells("experiment=mine")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        "drafter=ngram,eagle3 drafter.ngram_max=3",
        "drafter=mtp verification=strict,typical verification.epsilon=0.1",
        "workload=hf workload.split=train workload.column=prompt",
        "drafter=none verification=block drafting.num_speculative_tokens=3",
        "experiment=quickstart verification=strict drafting.num_speculative_tokens=2",
        "drafter=mtp target.path=owner/model target.revision=main",
        f"{RUNNING} drafter=eagle3 verification=block decoding.temperature=0,1 measurement.baseline=false",
        f"{RUNNING} drafter=none decoding.temperature=0,1",
    ],
)
def test_a_setting_that_one_cell_of_the_run_uses_is_taken(arguments):
    assert cells(*arguments.split())


def test_files_may_say_what_only_some_of_their_runs_use(conf):
    """Would catch an experiment that runs with the member alone for which it has settings."""
    (conf / "experiment" / "mine.yaml").write_text("# @package _global_\ndrafter: {ngram_max: 7, path: a/b}\n")
    assert cells("experiment=mine", "drafter=ngram")[-1].drafter == drafter_of("ngram", ngram_max=7)
    assert cells("experiment=mine", "drafter=mtp")[-1].drafter == drafter_of("mtp", path="a/b")


def test_every_setting_that_may_be_without_effect_exists():
    named = {name for names, _, _ in USED_ONLY_WITH for name in names}
    assert named <= {*all_settings(), *group_options(), "draft_sampling"}


def test_messages_do_not_name_the_folder_of_the_checkout():
    with pytest.raises(SettingsError) as caught:
        cells("drafter=unknown")
    assert not re.search(r"(/[\w.-]+){2,}", str(caught.value))
