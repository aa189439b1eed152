"""The paper's experiments at any scale: lists of runs, their process pool, results, verdicts and pages."""
