"""HTML reports: pages, charts and templates for the results of other rooms."""
