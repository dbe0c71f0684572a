"""What travels inside a simulated run package: its shell header and its installer."""
