"""The Polaris homework's question on file formats: training time and size as asked, and read times in full."""
