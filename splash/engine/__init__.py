"""From clients to steps and back: the loop, the in-process client, text, traces, workloads, reports."""
