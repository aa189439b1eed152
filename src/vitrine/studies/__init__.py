"""The paper's experiments at any scale: lists of runs, the pool that runs them, results, verdicts and pages."""
