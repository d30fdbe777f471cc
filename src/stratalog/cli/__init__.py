"""The `strata` command: arguments in, calls of the product and printed lines out; one module per noun."""
