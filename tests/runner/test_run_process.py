"""What the process of `run` itself loads, and when."""

import subprocess
import sys
import threading
from importlib.util import find_spec

import pytest

from harness.config.cli.ending import INTERRUPTED, REQUEUE
from harness.runner import whole_run
from tests.support.own_process import ROOT, output_of
from tests.support.supervised_runs import plan_on


def test_the_supervisor_needs_no_torch(tmp_path):
    """Would catch a GPU that the supervisor holds, and seconds before the first message."""
    cells = "'drafter=eagle3', 'verification=strict,block', 'workload.num_prompts=4', 'workload.num_turns=1'"
    server = f"'backend.kind=tests.support.fake_servers:FakeServer', 'backend.device=cpu', 'output.folder={tmp_path}'"
    code = f"import sys; from experiments.run import main; assert main([{cells}, {server}]) == 0; "
    assert output_of(code + "print('torch' in sys.modules)").splitlines()[-1] == "False"


def test_a_worker_imports_what_its_cells_run_with_once_and_no_more():
    """Would catch a report's or a data set's library before the first measured request, and imports that collect
    garbage over and over, which take a third more time, or leave it all to the next collection."""
    code = (
        "import gc, sys; from harness.runner import worker; from harness.backends.backend import backend_class\n"
        "from harness.config.cell import CellConfig; from harness.config.workload import WorkloadConfig\n"
        "from harness.config.sections import DecodingConfig; from harness.runner.groups import groups_of\n"
        "backend = CellConfig().backend\n"
        "collected = []; gc.callbacks.append(lambda phase, info: collected.append(phase))\n"
        "local = backend_class(backend)\n"
        "num_young = len(gc.get_objects(0)) + len(gc.get_objects(1)); gc.callbacks.clear()\n"
        "workload = WorkloadConfig(num_prompts=1, num_turns=1)\n"
        "cell = CellConfig(workload=workload, decoding=DecodingConfig(max_new_tokens=2))\n"
        "run = local(cell).generate(groups_of([cell])[0].played)\n"
        "unused = {'pandas', 'matplotlib', 'datasets', 'hydra', 'omegaconf', 'llguidance', 'jsonschema', 'aiohttp'}\n"
        "print(len(run.requests), gc.isenabled(), len(collected), num_young < 1000, sorted(unused & set(sys.modules)))"
    )
    assert output_of(code).splitlines()[-1] == "1 True 0 True []"


def test_what_a_report_needs_is_imported_while_the_workers_run(tmp_path, monkeypatch):
    """Would catch seconds before or after every run in which nothing but imports happens, and a name that is no
    module's, of which the thread says nothing."""
    is_running, imported = threading.Event(), []

    class Run:
        def __init__(self, *arguments):
            pass

        def run(self):
            is_running.set()
            (thread,) = (thread for thread in threading.enumerate() if thread.name == whole_run.IMPORTS)
            thread.join()

    def import_module(name):
        # none of them while nothing else goes on
        assert is_running.wait(10)
        imported.append(name)

    monkeypatch.setattr(whole_run, "Supervisor", Run)
    monkeypatch.setattr(whole_run, "import_module", import_module)
    whole_run.run_plan(plan_on("Raises", tmp_path), [])
    assert {"matplotlib.backends.backend_agg", "scipy.special", "harness.report.figures.write"} <= {*imported}
    assert all(map(find_spec, imported))


def test_threads_are_chosen_before_torch_is_there():
    """Would catch two threads that wait for each other, a larger model on one, and a number of the user's overruled."""
    code = (
        "import os; from harness.config.cell import CellConfig; from harness.config.models import TargetConfig; "
        "from harness.runner.cpu_threads import VARIABLE, choose_threads\n"
        "for given, path in ((None, None), (None, 'folder'), ('7', None)):\n"
        "    os.environ.pop(VARIABLE, None)\n"
        "    os.environ.update({VARIABLE: given} if given else {})\n"
        "    choose_threads([CellConfig(TargetConfig(path=path))])\n"
        "    print(os.environ.get(VARIABLE))"
    )
    assert output_of(code).split() == ["1", "None", "7"]


@pytest.mark.parametrize(("first", "threads"), [("os", "1"), ("torch", "3")])
def test_torch_that_came_with_a_drafter_gets_one_thread_too(first, threads):
    """Would catch a run that is many times slower because the module of a drafter imported torch before it began, and
    a number that was set beside a notebook's own torch overruled."""
    code = (
        f"import os; os.environ.pop('OMP_NUM_THREADS', None); import {first}; "
        "from harness.config.cell import CellConfig; from harness.config.imported import ImportPath; "
        "ImportPath('tests.support.own_drafters:LastToken').load('drafter.kind'); "
        "import torch; torch.set_num_threads(3); "
        "from harness.runner.cpu_threads import choose_threads; choose_threads([CellConfig()]); "
        "print(torch.get_num_threads())"
    )
    assert output_of(code).split() == [threads]


@pytest.mark.parametrize("module", ["experiments.run", "hydra"])
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", REQUEUE), ("SIGUSR1", REQUEUE), ("SIGINT", INTERRUPTED)])
def test_a_signal_during_the_imports_has_its_exit_code_and_one_line(name, code, module):
    """Would catch a job that its scheduler ends just after the start and does not queue again, and a traceback."""
    program = (
        "import os, signal, sys\n"
        # a job in the background of a shell ignores it
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Sends:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.{name})\n"
        "sys.meta_path.insert(0, Sends())\n"
        "from experiments.__main__ import main\n"
        "sys.exit(main(['run', '--list']))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code and not done.stdout
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("interrupted")
