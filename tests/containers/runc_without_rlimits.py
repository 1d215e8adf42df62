#!/usr/bin/python3
"""runc, which asks for no limits of open files and processes: some hosts grant no higher ones than they have."""

import json
import os
import shutil
import sys
from pathlib import Path

arguments = sys.argv[1:]
files = {"--bundle": "config.json", "-b": "config.json", "--process": "", "-p": ""}
for word, name in files.items():
    if word in arguments:
        file = Path(arguments[arguments.index(word) + 1]) / name
        config = json.loads(file.read_text())
        config.get("process", config).pop("rlimits", None)
        file.write_text(json.dumps(config))
program = shutil.which("runc") or "/usr/sbin/runc"
os.execv(program, ["runc", *arguments])  # noqa: S606 - a wrapper
