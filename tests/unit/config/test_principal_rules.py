"""`ssl.principal.mapping.rules`: a distinguished name becomes a name, as in Kafka's SslPrincipalMapperTest."""

import pytest

from stratalog.config import BrokerConfig
from stratalog.config.kinds import BadValue
from stratalog.config.principal_rules import name_by_rules, parse_rules
from stratalog.errors import UserError

KAFKAS = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
)


@pytest.mark.parametrize(
    ("name", "principal"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=HR,O=mycp,L=Fulton,ST=MD,C=US", "duke@hr"),
        ("cn=duke,ou=hr,dc=mycp,dc=com", "DUKE@HR"),
        ("O=HR1,CN=duke.x", "DUKE.X"),
        ("OU=JavaSoft,O=Sun Microsystems", "OU=JavaSoft,O=Sun Microsystems"),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_decides(name: str, principal: str) -> None:
    assert name_by_rules(parse_rules(KAFKAS), name) == principal


def test_the_default_is_the_whole_name_and_no_match_is_no_name() -> None:
    assert name_by_rules(parse_rules("DEFAULT"), "CN=a") == "CN=a"
    assert name_by_rules(parse_rules("RULE:^CN=(b)$/$1/"), "CN=a") is None


@pytest.mark.parametrize("name", ["al\nice", "alice\r", "al\x00ice", "al\x85ice", "al\u2028ice"])
def test_a_name_of_several_lines_is_no_name(name: str) -> None:
    assert name_by_rules(parse_rules("DEFAULT"), f"CN={name}") is None
    assert name_by_rules(parse_rules("DEFAULT"), "CN=Zoë\u3000山田") is not None


def test_a_slash_is_escaped_within_a_part() -> None:
    assert name_by_rules(parse_rules(r"RULE:^CN=(.*)\/(.*)$/$2\/$1/"), "CN=a/b") == "b/a"


@pytest.mark.parametrize(
    "text",
    [
        "delete",
        "RULE:x",
        "RULE:^CN=(.*$/x/",
        "RULE:^CN=(.*)$/$2/",
        "RULE:^CN=(.*)$/$1/X",
        "",
        ",",
        "RULE:CN=(.*)/$/",
        "RULE:CN=(.*)/${name}/",
        "RULE:[/]/x/",
        r"RULE:CN=(.*)/a\/",
        "DEFAULT RULE:a/b/",
        "RULE:^CN=(.*)$/$1/L DEFAULT",
    ],
)
def test_rules_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_rules(text)


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("RULE:CN=(.*?)/[$1]/", "[]abc"),
        ("RULE:.*/x/", "xx"),
        ("RULE:CN=(?<name>.*)/${name}/U", "ABC"),
        ("RULE:CN=(.*)/$12/", "abc2"),
        ("RULE:CN=(.*)/$0/", "CN=abc"),
        (r"RULE:CN=(.*)/\$1\\/", "$1\\"),
        (",RULE:CN=(.*)/$1/,,DEFAULT,", "abc"),
        (r"RULE:CN=\\/x/,DEFAULT", "CN=abc"),
    ],
)
def test_a_replacement_is_javas(rules: str, principal: str) -> None:
    assert name_by_rules(parse_rules(rules), "CN=abc") == principal


def test_the_refusal_of_a_rule_names_what_is_not_supported() -> None:
    with pytest.raises(UserError) as refused:
        BrokerConfig.load({}, [r"ssl.principal.mapping.rules=RULE:CN=(\p{L}+)/$1/"], {})
    assert r"has '\\p{', which is not supported" in str(refused.value)
    assert "\n" not in str(refused.value)
