"""The Polaris homework in fp32, fp16 and bf16, over target length and width."""
