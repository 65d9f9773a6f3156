"""EAGLE-3 training: prompts and samples, loss, data, loop, exact resume."""
