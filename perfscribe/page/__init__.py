"""A report as one HTML file: the hand-in open, details and appendix folded, figures within."""
