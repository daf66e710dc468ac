"""The FSDP workshop's weak scaling, and two variants that really keep the work per GPU constant."""
