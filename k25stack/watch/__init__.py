"""The engine supervisor: starts an engine, knows whether it works, heals it (standard library only)."""
