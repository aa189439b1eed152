"""A study behind its verb: data on the device, the plan, each run, what came of it."""
