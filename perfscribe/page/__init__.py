"""A report as one HTML file: `document` reads its Markdown, `embedded` takes in figures and tables, `write` fills a
template with both."""
