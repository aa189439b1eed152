"""The paper's experiments, one file each: the claim, the runs, the rule, the charts."""
