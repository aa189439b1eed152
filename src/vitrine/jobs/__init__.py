"""The work behind each verb: one file per verb wires the rooms together and returns a record of what was done."""
