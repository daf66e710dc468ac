"""The report: first page, hand-in, details, appendix, HTML, the page of all sites."""
