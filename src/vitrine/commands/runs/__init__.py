"""A training run behind the verbs: its data, what it learns, its records, its report."""
