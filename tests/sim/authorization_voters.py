"""Requests that change the voters, with the error for a client without any right.

In: nothing. Out: cases by API. It sends nothing.
"""

from uuid import UUID

from tests.sim.authorization_case import CLUSTER, Case, case

_VOTER = {"cluster_id": None, "voter_id": 1, "voter_directory_id": str(UUID(int=7))}
_VERSIONS = {"min_supported_version": 0, "max_supported_version": 1}
VOTER_CASES: dict[str, list[Case]] = {
    "AddRaftVoter": [
        case("add_raft_voter", 0, CLUSTER, lambda _: {**_VOTER, "timeout_ms": 9, "listeners": []})
    ],
    "RemoveRaftVoter": [case("remove_raft_voter", 0, CLUSTER, lambda _: _VOTER)],
    "UpdateRaftVoter": [
        case(
            "update_raft_voter",
            0,
            CLUSTER,
            lambda _: {
                **_VOTER,
                "current_leader_epoch": 1,
                "listeners": [],
                "kraft_version_feature": _VERSIONS,
            },
        )
    ],
}
