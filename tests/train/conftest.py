"""Documents of every awkward shape."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers beside this file

from twin_draft import make_document

from k25stack.states.document import Document


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    """Prompts of one to many tokens, responses of one to many: rows before the document, no loss row at all."""
    shapes = [(7, 12), (1, 5), (2, 9), (3, 1), (1, 1), (20, 3), (5, 30)]
    return [make_document(prompt, response, seed) for seed, (prompt, response) in enumerate(shapes)]
