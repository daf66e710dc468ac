"""SimpleGPTModel on 1, 2, 4 and 8 GPUs of one node and on several nodes: by Trainer, a bare loop, and tuned."""
