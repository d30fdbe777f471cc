"""The only code that touches the system or a vendor's library: what `ports` promises, for real."""
