"""What a study needs to run: its data, its plan, its runs and what came of them."""
