"""Data sets as numbered lists of examples with a class map, one file per kind."""
