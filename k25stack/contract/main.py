"""Step program: ``python -m k25stack.contract.main SPEC.json`` checks a packaged draft (no torch).

params {engines: ["reference", "sglang@0.5.20", ...], context?}, inputs {draft, target, states?}; writes
``check.json`` in the one result shape.  A failed check ends the step with exit code 1 and names the first finding.
"""

from __future__ import annotations

from typing import Any

from k25stack.contract.draft import check_draft
from k25stack.contract.facts import Question
from k25stack.contract.finding import Verdict, lines
from k25stack.draft.target import TargetFacts
from k25stack.errors import ContractError
from k25stack.files import write_json
from k25stack.worker import Spec, log, run_worker


def program(spec: Spec) -> dict[str, Any]:
    question = Question(
        target=TargetFacts.read(spec.inputs["target"]),
        context=spec.params.get("context"),
        states=spec.inputs.get("states"),
        deep=True,
    )
    result = check_draft(spec.inputs["draft"], spec.params["engines"], question)
    write_json(spec.out / "check.json", result.as_dict())
    for line in lines(result):
        log(line)
    if result.verdict in (Verdict.FAIL, Verdict.UNKNOWN):
        first = max(result.checks, key=lambda check: check.verdict.rank)
        raise ContractError(
            f"{first.id} {first.group}: {first.message}", where=str(spec.inputs["draft"]), remedy=first.fix
        )
    counts = {verdict.value: sum(check.verdict is verdict for check in result.checks) for verdict in Verdict}
    return {"verdict": result.verdict.value, "checks": counts}


if __name__ == "__main__":
    raise SystemExit(run_worker(program))
