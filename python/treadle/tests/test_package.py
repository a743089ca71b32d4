"""The package as it is shipped: its types, its generated code, its examples."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

package = pathlib.Path(__file__).resolve().parents[1]


def run(*command: str | pathlib.Path, folder: pathlib.Path = package) -> str:
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_types_are_strict() -> None:
    cache = os.environ.get("TREADLE_MYPY_CACHE", os.devnull)
    assert "no issues found" in run("-m", "mypy", "--cache-dir", cache)


def test_its_generated_code_is_of_the_proto(tmp_path: pathlib.Path) -> None:
    run("generate.py", tmp_path)
    made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert made == {name: (package / "src/treadle/_generated" / name).read_text() for name in made}
    assert len(made) == 2


def test_the_example_of_a_parallel_suite_runs_it_under_pytest(target: str, tmp_path: pathlib.Path) -> None:
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "test_it.py").write_text(
        "import pytest\n\n@pytest.mark.parametrize('number', range(8))\ndef test_one(number):\n    assert number < 8\n"
    )
    said = run("examples/parallel_tests.py", target, suite)
    assert "8 passed" in said
    assert "because:" in said and "unit-aware" in said


def test_the_examples_of_the_adapters_run(target: str) -> None:
    said = run("examples/verl_tool.py", target)
    assert "'cat answer.txt' printed '42\\n', exit code 0" in said and "reward 1.0" in said
    assert "reward 1.0, done True" in run("examples/skyrl_environment.py", target)
    assert "hello\nworld in project\n" in run("examples/swerex_deployment.py", target)
