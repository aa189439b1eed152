"""HTML reports: pages, charts and templates for what other rooms measured."""
