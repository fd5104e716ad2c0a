"""A command line that is shown can be given again."""

import shutil
import subprocess

import pytest

from harness.analysis.flat_settings import flattened
from harness.config.cli.shell_line import shell_line

pytestmark = pytest.mark.fast

WORDS = ["run", "drafting.tree=2-2", "it's", 'decoding.stop=["\n\n","a\'\\\t\u00a0é"]', "", "a b"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_shell_reads_the_words_back():
    """Would catch a line break that tears the line, and a sign that the shell takes for its own."""
    line = shell_line(WORDS)
    assert line.isprintable()
    done = subprocess.run(["bash", "-c", rf"printf '%s\0' {line}"], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == WORDS


def test_texts_of_a_list_stand_on_one_line_and_apart():
    found = flattened({"decoding": {"stop": ["\n\n", "a, b", "plain words", " x"]}, "paths": ["a/b.json"]})
    assert found == {"decoding.stop": r'["\n\n", "a, b", plain words, " x"]', "paths": "[a/b.json]"}
