"""Runs for an experiment tracker, made from records after measuring: no measured process reports to one."""
