"""For whoever runs a cluster: what they expect of it in, figures to buy and to judge by out."""
