"""All figures of one inspection, drawn, written and put on one page."""
