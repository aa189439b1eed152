"""Contents and problems of a data set: damage, duplicates, overlap with test sets."""
