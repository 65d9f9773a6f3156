"""Measuring a live host: programs that use its cards and disks, and the session that talks to them.

``worker`` runs where torch is (a Python of this machine, or a container) and needs this package and torch, nothing
else; the rest of the host room never imports torch.  It reads one request a line, answers with lines of text and ends
each answer with ``# end CODE``.  Whatever touches a card runs in children that a time limit kills.
"""
