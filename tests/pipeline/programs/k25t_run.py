"""The command of these tests: ``python k25t_run.py WORKSPACE OPTIONS.json`` runs the small loop of ``k25t_loop``."""

import json
import sys
from pathlib import Path

from k25t_loop import request

from k25stack.cli.main import of_system
from k25stack.errors import K25Error
from k25stack.pipeline.runner import Runner
from k25stack.pipeline.workspace import Workspace

if __name__ == "__main__":
    options = json.loads(Path(sys.argv[2]).read_text())
    try:
        outcome = Runner(Workspace(Path(sys.argv[1])), request(**options)).run()
    except (K25Error, OSError) as problem:
        error = problem if isinstance(problem, K25Error) else of_system(problem)
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    print(json.dumps({name: kept.content for name, kept in outcome.results.items()}))
