"""Starts a run's jobs quickly: servers that have imported torch, or what drawing takes, fork each job's processes.

Importing torch and its compiler takes seconds, and a run has tens of jobs. Snakemake starts the client (client.py) in
place of a job's script; the client hands the job to the server of its kind (server.py), passes signals on and waits
for its end. Where there is no server, or where the job's environment holds what libraries read when they are loaded
and the server's does not, the client becomes the script itself: nothing but time depends on the servers.

Snakemake -> servers' parent -> server, one a kind -> keeper, one a job -> the script -> what it forks (forked.py). From
the server on each ends with the one before, by the kernel, and a job with its client. Servers take no more jobs when
Snakemake's end of a pipe closes, and end after the last one. Linux alone, and on one machine alone: jobs of a cluster
start by themselves, and so do measuring jobs where there is a GPU, as its driver and NVML do not survive a fork.
"""
