"""Groups, offsets, transactions: state machines on internal topics. Pure."""
