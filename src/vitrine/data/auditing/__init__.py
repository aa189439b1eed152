"""What is in a data set and what is wrong with it: damage, duplicates, overlap with test sets."""
