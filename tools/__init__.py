"""Tools beside the product: a simulated CANN for development and CI, and benches."""
