"""``python -m k25stack`` is the command, for places where it is not on the path."""

from __future__ import annotations

import sys

from k25stack.cli.main import main

sys.exit(main())
