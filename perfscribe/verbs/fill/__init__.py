"""The verb `fill`: empty tables in any Markdown file are filled in place from a site's results."""
