"""Exports runs to an experiment tracker, from records after measuring: no measured process reports to a tracker."""
