"""The foreign formats by name, and which one a file is of."""

from __future__ import annotations

from harness.backends.foreign.content import Content
from harness.backends.foreign.format import ForeignFormat
from harness.config.imported import ImportPath, named
from harness.config.schema import SettingsError
from harness.config.union import Member

OPTION = "--as"


class FormatKind(Member):
    """A kind of file of another tool: its name, with PACKAGE.MODULE:CLASS of its reader."""

    vllm_log = "vllm_log", "harness.backends.foreign.vllm:VllmLog"
    vllm_metrics = "vllm_metrics", "harness.backends.foreign.vllm:VllmMetrics"
    vllm_bench = "vllm_bench", "harness.backends.foreign.vllm:VllmBench"
    vllm_answers = "vllm_answers", "harness.backends.foreign.vllm:VllmAnswers"
    sglang_log = "sglang_log", "harness.backends.foreign.sglang:SglangLog"
    sglang_metrics = "sglang_metrics", "harness.backends.foreign.sglang:SglangMetrics"
    sglang_bench = "sglang_bench", "harness.backends.foreign.sglang:SglangBench"
    sglang_answers = "sglang_answers", "harness.backends.foreign.sglang:SglangAnswers"
    tensorrt_llm_metrics = "tensorrt_llm_metrics", "harness.backends.foreign.tensorrt_llm:TensorrtLlmMetrics"
    tensorrt_llm_iterations = "tensorrt_llm_iterations", "harness.backends.foreign.tensorrt_llm:TensorrtLlmIterations"
    tensorrt_llm_bench = "tensorrt_llm_bench", "harness.backends.foreign.tensorrt_llm:TensorrtLlmBench"
    tensorrt_llm_requests = "tensorrt_llm_requests", "harness.backends.foreign.tensorrt_llm:TensorrtLlmRequests"
    tensorrt_llm_histogram = "tensorrt_llm_histogram", "harness.backends.foreign.tensorrt_llm:TensorrtLlmHistogram"
    llama_cpp_log = "llama_cpp_log", "harness.backends.foreign.llama_cpp:LlamaCppLog"
    llama_cpp_metrics = "llama_cpp_metrics", "harness.backends.foreign.llama_cpp:LlamaCppMetrics"
    llama_cpp_answers = "llama_cpp_answers", "harness.backends.foreign.llama_cpp:LlamaCppAnswers"
    eagle = "eagle", "harness.backends.foreign.eagle:EagleAnswers"
    spec_bench = "spec_bench", "harness.backends.foreign.spec_bench:SpecBenchAnswers"
    specforge = "specforge", "harness.backends.foreign.specforge:SpecforgeBenchmark"
    specforge_matrix = "specforge_matrix", "harness.backends.foreign.specforge:SpecforgeMatrix"
    speculators = "speculators", "harness.backends.foreign.speculators:SpeculatorsCsv"
    aiperf = "aiperf", "harness.backends.foreign.aiperf:AiperfSummary"
    aiperf_records = "aiperf_records", "harness.backends.foreign.aiperf:AiperfRecords"
    aiperf_server = "aiperf_server", "harness.backends.foreign.aiperf:AiperfServerMetrics"
    guidellm = "guidellm", "harness.backends.foreign.guidellm:GuidellmReport"


def format_named(name: str) -> tuple[str, ForeignFormat]:
    """A format by its name, or PACKAGE.MODULE:CLASS of the user's own; SettingsError where there is none."""
    try:
        kind = named(OPTION, FormatKind.__members__, name)
        found = kind.load(OPTION, type) if isinstance(kind, ImportPath) else kind.named
    except ValueError as error:
        raise SettingsError(str(error)) from error
    if not issubclass(found, ForeignFormat):
        raise SettingsError(f"{OPTION}: expected a class of ForeignFormat, found {name}")
    return str(kind.value), found()


def format_of(content: Content) -> tuple[str, ForeignFormat]:
    """The format of a file, by what is in it; SettingsError where it is of none, or of several."""
    every = [(kind.value, kind.named()) for kind in FormatKind]
    found = [(name, item) for name, item in every if item.recognises(content)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(name for name, _ in found)
        raise SettingsError(f"expected a file of one format, found what {names} have: say which by {OPTION} NAME")
    listed = "\n".join(f"  {name}: {item.title}" for name, item in every)
    raise SettingsError(
        f"expected acceptance numbers in one of these formats ({OPTION} NAME takes one as it is), found none of them:\n"
        f"{listed}"
    )
