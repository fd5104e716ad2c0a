"""What can be wrong with the cells of a run, found before anything is loaded.

Each setting and each cell is valid by itself. This module does not know how cells are composed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.constraint import ENDS_BY_GRAMMAR, AnswerConfig, GrammarConfig, GrammarKind, PolicyKind
from harness.config.device import asks_for_gpu
from harness.config.drafting import NUM_TOKENS
from harness.config.models import Layers, TargetConfig, Weights
from harness.config.schema import CONF, SettingsError, did_you_mean, group_options
from harness.config.usage import without_effect
from harness.engine.constraint.grammar_text import check_given_grammar
from harness.engine.constraint.registry import check_parser
from harness.models.check_files import check_served_tokenizer, check_target_files
from harness.models.check_model_configs import check_model_configs
from harness.models.checkpoint import CheckpointError
from harness.models.gguf import check_tokenizer, gguf_in, is_gguf, read_header
from harness.models.shape import shape_names
from harness.runner.plan.overrides import Given
from harness.workload.prompt_files import prompt_file
from kernels.methods.hooks import runs_on_kernels


def check_cells(cells: Sequence[CellConfig]) -> None:
    """Look for files, models, labels and constraints that cannot be meant.

    Args:
        cells: every cell of the run.

    Raises:
        SettingsError: with the first that is found.
    """
    _check_paths(cells)
    _check_served_files(cells)
    _check_ranks(cells)
    _check_target_names(cells)
    _check_objects(cells)
    _check_reference_core(cells)
    _check_least_tokens(cells)
    _check_servers(cells)
    _check_running_servers(cells)
    check_model_configs([cell for cell in cells if not cell.is_served])


def check_target(target: TargetConfig, *, is_loaded: bool) -> None:
    """Look for a target, before anything that depends on it: a drafter that it has none of, settings of its cell.

    Args:
        target: of a cell.
        is_loaded: here, and not by a server.

    Raises:
        SettingsError: its folder, its shape or a file of its checkpoint is not there, or is none of such a model.
    """
    check_model_path("target.path", target.path)
    _check_shape("target.shape", target.shape)
    if is_loaded and not is_gguf(target.path):
        check_target_files(target)


def _check_paths(cells: Sequence[CellConfig]) -> None:
    """Files and folders that are named must be there."""
    for path in dict.fromkeys(path for cell in cells for path in cell.workload.paths):
        if not os.path.isfile(prompt_file(path)):
            raise SettingsError(f"workload.path: expected a JSON Lines file, found none at {path!r}")
    for drafter in dict.fromkeys(cell.drafter.path for cell in cells):
        check_model_path("drafter.path", drafter)
    for cell in cells:
        for key, model in (("target", cell.target), ("drafter", cell.drafter)):
            if model.preferred is None:  # else the folder is that of the revision
                _check_revision(key, model.path, model.revision)
    for shape in dict.fromkeys(cell.drafter.shape for cell in cells):
        _check_shape("drafter.shape", shape)


def check_model_path(key: str, model: str | None) -> None:
    """Look for a model that is named.

    What may be a Hugging Face id is left to the loader, and who reads a GGUF file to `_check_served_files`.

    Args:
        key: of the setting, for the message.
        model: a folder, a file or an id.

    Raises:
        SettingsError: it is not here, and no id.
    """
    if model is None or os.path.isdir(model) or (is_gguf(model) and os.path.isfile(model)):
        return
    if is_gguf(model) or not _is_hub_id(model):
        what = "GGUF file" if is_gguf(model) else "folder"
        raise SettingsError(f"{key}: expected a folder or a Hugging Face id (owner/name), found no {what} {model!r}")


def _check_revision(key: str, path: str | None, revision: str | None) -> None:
    """A folder on this machine has one state, whatever revision is asked for."""
    if revision is not None and path is not None and os.path.exists(path):
        raise SettingsError(
            f"{key}.revision: expected none with a local folder, found {revision!r} with {key}.path={path}; a revision "
            "is one of a Hugging Face id"
        )


def _check_ranks(cells: Sequence[CellConfig]) -> None:
    """Several ranks compute layers of transformers alone, of weights that it reads in parts."""
    for cell in cells:
        if not isinstance(cell.backend, Local) or cell.backend.tensor_parallel == 1:
            continue
        found = f"backend.tensor_parallel={cell.backend.tensor_parallel}"
        if cell.target.layers is Layers.own:
            raise SettingsError(f"target.layers: expected auto or transformers with {found}, found own")
        if cell.backend.fused:
            raise SettingsError(f"backend.fused: expected false, or null, with {found}, found true")
        if is_gguf(cell.target.path):
            raise SettingsError(
                f"target.path: expected a folder of safetensors with {found}, found the GGUF file {cell.target.path}"
            )


def _check_served_files(cells: Sequence[CellConfig]) -> None:
    """A GGUF file goes to a server that reads such files, which is told of no other; beside other weights lies the
    tokenizer that prompts are made with."""
    for cell in cells:
        reads_gguf = cell.is_served and cell.server.traits.reads_gguf
        for key, path in (("target.path", cell.target.path), ("drafter.path", cell.drafter.path)):
            if is_gguf(path) and not reads_gguf:
                raise SettingsError(
                    f"{key}: expected a folder of safetensors with backend={cell.backend.kind}, found the GGUF file "
                    f"{path}; server=llama_cpp serves it, and backend=local reads those of targets and draft models"
                )
    started = [cell for cell in cells if cell.is_served and cell.server.traits.reads_gguf and cell.server.url is None]
    named = [("target.path", cell.target.path) for cell in started if "{target}" in (cell.server.command or "")]
    named += [("drafter.path", cell.drafter.path) for cell in started if cell.drafter.has_model]
    for key, path in dict.fromkeys(named):
        _check_served_file(key, path)
    served = {repr(cell.target): cell.target for cell in cells if cell.is_served and not is_gguf(cell.target.path)}
    for target in served.values():
        check_served_tokenizer(target)


def _check_served_file(key: str, path: str | None) -> None:
    try:
        found = None if path is None else gguf_in(path)
        header = {} if found is None else read_header(found)
        if found is not None and key == "target.path" and is_gguf(path):
            check_tokenizer(found, header)
    except CheckpointError as error:
        raise SettingsError(f"{key}: {error}") from error
    if found is None:
        raise SettingsError(
            f"{key}: expected a GGUF file, or a folder with one, for a server that reads such files, found "
            f"{'none: the built-in model has none' if path is None else path}; convert the model "
            "(convert_hf_to_gguf.py of llama.cpp)"
        )


def _check_shape(key: str, shape: str | None) -> None:
    if shape is not None and shape not in shape_names():
        hint = did_you_mean(shape, shape_names())
        raise SettingsError(f"{key}: expected one of {', '.join(shape_names())}, found {shape}{hint}")


def _check_reference_core(cells: Sequence[CellConfig]) -> None:
    """A method of the user's own without hooks runs on the reference core, which CUDA graphs cannot hold: on a GPU it
    needs a run without them, so that its baseline has none either."""
    for cell in cells:
        method, backend = cell.imported.get("verification.method"), cell.backend
        if (
            method is None
            or not isinstance(backend, Local)
            or backend.graphs is False
            or not asks_for_gpu(backend.device)
        ):
            continue
        if not runs_on_kernels(cell.verification.method):
            raise SettingsError(
                "backend.graphs: expected false with a verification method of your own without hooks on a GPU: CUDA "
                f"graphs cannot hold the reference core; found {'null' if backend.graphs is None else 'true'} with "
                f"verification.method={method}; set backend.graphs=false, which its baseline takes too"
            )


def _check_least_tokens(cells: Sequence[CellConfig]) -> None:
    """A grammar may leave the end of the answer alone, which a least number of tokens would forbid."""
    for cell in cells:
        if cell.decoding.min_tokens and isinstance(cell.constraint, GrammarConfig):
            raise SettingsError(f"decoding.min_tokens: {ENDS_BY_GRAMMAR}, found {cell.decoding.min_tokens}")


def _servers_with_commands() -> list[str]:
    files = {name: CONF / "server" / f"{name}.yaml" for name in group_options()["server"]}
    return [name for name, path in files.items() if re.search(r"^command:", path.read_text(), re.MULTILINE)]


def _check_servers(cells: Sequence[CellConfig]) -> None:
    """Cells of backend=server say where a server is, and ask it for what it can do."""
    for cell in cells:
        server, decoding = cell.server, cell.decoding
        if not cell.is_served:
            continue
        if server.url is None and server.command is None:
            named = "|".join(_servers_with_commands())
            raise SettingsError(
                "server.url: expected the address of a server that runs, or server.command to start one, found "
                f"neither; server={named} have a command"
            )
        _check_served_weights(cell)
        if server.num_waiting and (server.url is not None or "{max_concurrency}" not in (server.command or "")):
            raise SettingsError(
                "server.num_waiting: expected 0 unless server.command starts the server with {max_concurrency}: with "
                f"more places the requests would not wait, but be in flight too, found {server.num_waiting}"
            )
        asks_more = decoding.top_k or decoding.min_p or decoding.ignore_eos
        is_plain = asks_more and not server.traits.takes_all_sampling
        if cell.measurement.round_terms:
            raise SettingsError(
                "measurement.round_terms: expected false with backend=server: no server sends them; inside vLLM our "
                "plug-in records them for `rejection-lab replay FOLDER` (harness/plugins/README.md)"
            )
        asked = {
            "decoding.logprobs": decoding.logprobs is not None,
            f"decoding.top_k, min_p or ignore_eos with server={server.engine.value}": is_plain,
        }
        for key, is_asked in asked.items():
            if is_asked:
                raise SettingsError(f"{key}: expected its default with backend=server, which does not ask for it")
        refused = server.traits.refused_edit(decoding.sampling, not cell.is_baseline)
        if refused is not None:
            raise SettingsError(f"decoding: {refused}; server.engine={server.engine.value}")
        _check_served_constraint(cell)


def _check_running_servers(cells: Sequence[CellConfig]) -> None:
    """A server that runs has the drafts and the method that it was started with; at temperature 0 methods are one."""
    for url in dict.fromkeys(cell.server.url for cell in cells if cell.is_served and cell.server.url is not None):
        here = [cell for cell in cells if cell.is_served and cell.server.url == url]
        drafts = {
            f"drafter={cell.drafter.kind.value}, K = {cell.drafting.num_speculative_tokens}": None
            for cell in here
            if not cell.is_baseline
        }
        if any(cell.is_baseline or cell.measurement.baseline for cell in here):
            drafts["no drafter (the baseline)"] = None
        sampled = [cell for cell in here if cell.decoding.temperature and not cell.is_baseline]
        methods = {cell.verification.method.value: None for cell in sampled}
        sampling = {cell.draft_sampling.value: None for cell in sampled}
        for what, found in (("drafter and K", drafts), ("verification", methods), ("drafting.sampling", sampling)):
            if len(found) > 1:
                raise SettingsError(
                    f"server.url: expected one {what}, what the server at {url} was started with, found "
                    f"{'; '.join(found)}; give a server that drafts measurement.baseline=false, and each arm a run"
                )


def _check_served_weights(cell: CellConfig) -> None:
    """A server draws random weights for all of its models or for none."""
    server, target, drafter = cell.server, cell.target.weights, cell.drafter
    if cell.drafter.has_model and drafter.weights is not target:
        raise SettingsError(
            f"drafter.weights: expected {target.value}, as target.weights, with backend=server, found "
            f"{drafter.weights.value}"
        )
    if target is not Weights.random:
        return
    if not server.traits.draws_weights or server.url is not None:
        raise SettingsError(
            "target.weights: expected checkpoint with a server that runs already, or that is told of no random weights "
            f"(server={server.engine.value}), found random"
        )
    if "{weights}" not in (server.command or "").split():
        raise SettingsError(
            f"server.command: expected {{weights}}, which makes the server draw random weights, found {server.command}"
        )


def _check_served_constraint(cell: CellConfig) -> None:
    """A served engine follows grammars by a policy of its own, if any."""
    constraint, name, traits = cell.constraint, cell.server.engine.value, cell.server.traits
    policies = [item.value for item in traits.policies]
    if isinstance(constraint, AnswerConfig) and constraint.policy.value not in policies:
        expected = " or ".join([PolicyKind.free_text.value, *policies])
        raise SettingsError(f"constraint: expected {expected} with server={name}, found {constraint.policy.value}")
    if not isinstance(constraint, GrammarConfig):
        return
    if constraint.kind is GrammarKind.lark or constraint.parser not in traits.reasoning_parsers:
        raise SettingsError(
            f"constraint: expected kind json_schema or regex and parser {', '.join(traits.reasoning_parsers)} with "
            f"server={name}, found kind {constraint.kind.value} and parser {constraint.parser}"
        )
    command = cell.server.command or ""
    if cell.server.url is None and "{reasoning}" not in command.split():
        raise SettingsError(
            f"server.command: expected {{reasoning}}, which tells the server where reasoning ends, found {command}"
        )


def _is_hub_id(path: str) -> bool:
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", path) is not None


def _check_target_names(cells: Sequence[CellConfig]) -> None:
    """Two targets need two labels: results are told apart by them."""
    sources: dict[str, tuple[str | None, ...]] = {}
    for target in [cell.target for cell in cells]:
        source = (target.path or target.shape, target.revision, target.weights.value)
        if sources.setdefault(target.name, source) != source:
            raise SettingsError(
                f"target.name: expected a label of its own for each target, found {target.name!r} for both "
                f"{sources[target.name]} and {source}; run them one by one with target.name=LABEL"
            )


def check_effect(given: Mapping[str, Given], cells: Sequence[CellConfig]) -> None:
    """What was typed must be used by some cell; files of conf/ may say what only some of their runs use.

    Raises:
        SettingsError: with the first that is not.
    """
    keys = list(given)
    if {"drafter", "drafter.kind"} & given.keys() and all(cell.is_baseline for cell in cells):
        # who asks for the baseline by name knows that it neither drafts nor verifies
        keys = [key for key in keys if key.partition(".")[0] not in ("drafting", "verification")]
    unused = without_effect(keys, cells)
    if unused is not None:
        key, words = unused
        raise SettingsError(
            f"{key}: expected a setting that some cell of the run uses, found none that does: "
            f"it is used only {words}; leave it out or choose that"
        )
    asked = given[NUM_TOKENS].values if NUM_TOKENS in given else ()
    depths = {cell.drafting.num_speculative_tokens for cell in cells if not (cell.is_baseline or cell.drafts_tree)}
    if depths and asked and depths.isdisjoint(asked):
        raise SettingsError(
            f"{NUM_TOKENS}: expected K in one place, found {', '.join(map(str, asked))} here and numbers as "
            "drafting.depth, which set K too; leave one of them out"
        )


def _check_objects(cells: Sequence[CellConfig]) -> None:
    """Objects of the user's own can be imported, and grammars can be followed with what is installed."""
    used = [cell.constraint for cell in cells if isinstance(cell.constraint, AnswerConfig)]
    try:
        for parser in dict.fromkeys(item.parser for item in used):
            check_parser(parser)
        for kind, grammar in dict.fromkeys((item.kind, item.grammar) for item in used):
            if grammar is not None:
                check_given_grammar(kind, grammar)
        for key, path in dict.fromkeys(item for cell in cells for item in cell.imported.items()):
            path.load(key)
    except ValueError as error:
        raise SettingsError(str(error)) from error
