"""What only plans, checks or moves files must not cost the start of torch."""

from __future__ import annotations

import os
import subprocess
import sys

LIGHT = [
    "k25stack.states.manifest",
    "k25stack.states.verify",
    "k25stack.model.target",
    "k25stack.model.tokenizer",
    "k25stack.model.verify",
    "k25stack.train.samples",
    "k25stack.train.corpus",
]
HEAVY = ["torch", "numpy", "transformers", "tokenizers", "datasets", "jinja2", "pydantic", "yaml"]


def test_light_modules_import_nothing_heavy() -> None:
    code = f"import sys, {', '.join(LIGHT)}\nprint(*sorted(set({HEAVY}) & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
