"""The Polaris homework's question on file formats: training time and size as asked, and the right measurement."""
