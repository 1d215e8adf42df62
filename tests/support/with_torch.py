"""What needs torch and PEFT: scripts, and `loraplane` with the extra `publish`, run by the engine's interpreter.

Torch and PEFT take seconds to be imported, so one process runs all that a worker's tests ask for, one after another.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from registry.tools.devstack.engine_environment import find_engine_python
from tests.support.ran import Ran

PROJECT = Path(__file__).parents[2]
# What both environments have is the engine's.
_WORKER = """
import contextlib, io, json, runpy, sys, traceback
sys.path += [{ours!r}]
from registry.cli.main import run
def script(arguments):
    sys.argv = arguments
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except (Exception, SystemExit):
        traceback.print_exc()
        return 1
    return 0
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    is_script, arguments = json.loads(line)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = script(arguments) if is_script else run(arguments)
    print(json.dumps([int(code), out.getvalue(), err.getvalue()]), flush=True)
"""


def loraplane(*arguments: str) -> Ran:
    """Runs a command line. The test's own timeout is the deadline."""
    return _ran(arguments, is_script=False)


def reference_command(python: Path, model: Path, adapters: dict[str, Path], prompts: list[str]) -> list[str]:
    """The command that prints what transformers and PEFT make of `prompts`, see `tests.support.reference`."""
    file = Path(__file__).with_name("reference.py")
    named = [part for name, path in adapters.items() for part in ("--adapter", f"{name}={path}")]
    asked = [part for prompt in prompts for part in ("--prompt", prompt)]
    # -P: the script's folder stays off the import path, so that its neighbours shadow nothing.
    return [str(python), "-P", str(file), "--model", str(model), *named, *asked]


def script(command: Sequence[str]) -> Ran:
    """Runs ``PYTHON -P SCRIPT ARGUMENTS``, which imports nothing of ours, as `loraplane` does."""
    python, flag, *arguments = command
    assert (python, flag) == (str(find_engine_python()), "-P")
    return _ran(arguments, is_script=True)


def _ran(arguments: Sequence[str], *, is_script: bool) -> Ran:
    process = _process()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([is_script, arguments]) + "\n")
    process.stdin.flush()
    return Ran(*json.loads(process.stdout.readline()))


@cache
def _process() -> subprocess.Popen[str]:
    worker = _WORKER.format(ours=sysconfig.get_paths()["purelib"])
    environment = os.environ | {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "2"}
    command = [str(find_engine_python()), "-c", worker]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, cwd=PROJECT)

    @atexit.register
    def end() -> None:
        process.kill()
        process.communicate()

    return process
