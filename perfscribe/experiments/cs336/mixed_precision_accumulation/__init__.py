"""Sums of many small terms with accumulator and addend in different precisions."""
