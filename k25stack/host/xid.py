"""Xid codes of the NVIDIA driver: which end a server, and what to do.  Source: NVIDIA's Xid catalogue."""

from __future__ import annotations

# The codes that health checks of large clusters treat as fatal (azurehpc-health-checks check_gpu_xid), and 95.
FATAL = frozenset({48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 95, 119, 120})

ACTIONS = {
    8: "the card stopped working on a channel: restart the server, look at driver.known",
    13: "a kernel raised an exception: look at the server's log first",
    31: "a kernel touched memory it does not own: look at the server's log first",
    43: "a program's channel was reset: restart it",
    45: "a program was torn down after an earlier error: look at the Xid before it",
    48: "an uncorrectable memory error: drain, reset the card, watch ecc.errors",
    62: "the card's power controller halted: reset the card; if it returns, exchange it",
    63: "a memory row is to be remapped: reset the card when it is idle",
    64: "a memory row could not be remapped: exchange the card",
    68: "the video processor raised an exception: restart the program",
    69: "the graphics engine raised an exception: restart the program",
    74: "an NVLink error: reset all linked cards; check the bridge",
    79: "the card fell off the bus: stop, power-cycle the host, check seating, power and risers",
    92: "many correctable memory errors: watch the card, exchange it if they go on",
    94: "an uncorrectable error hit one program: restart that program",
    95: "an uncorrectable error may hit every program: reset the card",
    109: "a context switch timed out: restart the server, look at driver.known",
    119: "the card's firmware (GSP) does not answer: reset the card or reboot",
    120: "the card's firmware (GSP) failed: reset the card or reboot",
    154: "the driver states what the card needs: see gpu.recovery",
}


def action(code: int) -> str:
    return ACTIONS.get(code, "look it up in NVIDIA's Xid catalogue; reset the card if it returns")
