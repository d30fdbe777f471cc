"""The `strata` command: a person's words in, calls of the product and printed lines out; one module per noun."""
