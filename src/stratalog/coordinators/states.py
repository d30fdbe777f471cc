"""The states of a classic group, and every transition between them.

In: nothing. Out: `GroupState` and `TRANSITIONS`; docs/architecture/coordinators.md draws them. Only `Group.become`
may change a group's state, and it checks this table. This module never holds a group.

Kafka: `ClassicGroupState`.
"""

from enum import Enum


class GroupState(Enum):
    """Values are the names that Kafka's tools print."""

    EMPTY = "Empty"
    """No members; maybe committed offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for members to join the next generation."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The generation is formed; waiting for its leader's assignment."""
    STABLE = "Stable"
    """Every member of the generation has an assignment."""
    DEAD = "Dead"
    """Gone: nothing is left to keep."""


TRANSITIONS: dict[GroupState, dict[GroupState, str]] = {
    GroupState.EMPTY: {
        GroupState.PREPARING_REBALANCE: "a member joins",
        GroupState.DEAD: "nothing is left, or it is deleted",
    },
    GroupState.PREPARING_REBALANCE: {
        GroupState.COMPLETING_REBALANCE: "all members joined, or time ran out",
        GroupState.EMPTY: "the last member left",
        GroupState.DEAD: "it is unloaded",
    },
    GroupState.COMPLETING_REBALANCE: {
        GroupState.STABLE: "the leader's assignment is committed",
        GroupState.PREPARING_REBALANCE: "a member joins, changes, leaves or fails",
        GroupState.DEAD: "it is unloaded",
    },
    GroupState.STABLE: {
        GroupState.PREPARING_REBALANCE: "a member joins, changes, leaves or fails",
        GroupState.DEAD: "it is unloaded",
    },
    GroupState.DEAD: {},
}
"""From -> to -> reason."""
