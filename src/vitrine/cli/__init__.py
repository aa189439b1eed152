"""Text in, text out, exit codes."""
