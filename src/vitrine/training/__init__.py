"""Optimizer, schedule, averaging, one step, one loop, resume, distribution.

The loop receives the objective and the evaluation as functions; it knows neither.
"""
