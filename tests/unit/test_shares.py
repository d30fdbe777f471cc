"""Shares of what all clients use are counted by holder, and the holder of most gives way to those with less."""

from stratalog.shares import Shares


def test_the_holder_of_most_gives_way_to_one_that_would_still_have_less() -> None:
    shares = Shares()
    assert shares.largest() is None
    assert shares.yields_to("b", 0) is None
    for holder, amount in (("a", 5), ("b", 2), ("c", 5), ("c", -4)):
        shares.add(holder, amount)
    assert (shares.total, shares.of("c"), shares.of("d")) == (8, 1, 0)
    assert shares.largest() == "a"
    assert shares.yields_to("b", 2) == "a"
    assert shares.yields_to("b", 3) is None, "both would have as much"
    assert shares.yields_to("a", 0) is None, "a holder does not give way to itself"
    shares.add("a", -5)
    assert shares.largest() == "b"
