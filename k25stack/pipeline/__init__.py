"""Steps with content-addressed results, the plan with its reasons, and the runner that survives being killed."""
