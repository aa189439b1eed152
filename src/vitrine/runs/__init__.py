"""One training run, from data, model and recipe to a run folder with a trained model and its report.

`train_run.train_run` is the one function that trains a run; the verbs, `VitClassifier`, VTAB and the studies call it.
"""
