"""Names and hosts of clients are Kafka's: the name of a certificate, the rules that shorten it, addresses.

Method: the JDK's `X500Principal` and Kafka's `SslPrincipalMapper` (`PrincipalNames.java`) and ours take the same
generated subjects, patterns and replacements. Ours may refuse a rule at the start; a rule that it takes has Java's
result.
"""

import subprocess
from base64 import b64decode, b64encode
from contextlib import suppress
from ipaddress import IPv6Address
from pathlib import Path
from random import Random

from cryptography.x509 import ObjectIdentifier
from cryptography.x509.oid import NameOID
from tests.compat.tools import java, kafka_lib

from stratalog.adapters.distinguished_name import distinguished_name
from stratalog.config.addresses import address_text
from stratalog.config.kinds import BadValue
from stratalog.config.principal_rules import parse_rules

SUBJECTS = 6000
RULES = 12000
ADDRESSES = 2000
SEED = 42
NUMBERS = [one.dotted_string for one in vars(NameOID).values() if isinstance(one, ObjectIdentifier)]
NUMBERS += ["1.3.6.1.4.1.99999.1", "2.999.1", "0.1", "1.39.5"]
COMMON = ["2.5.4.3", "2.5.4.10", "2.5.4.9", "0.9.2342.19200300.100.1.1"]
UTF8, PRINTABLE, BMP, UNIVERSAL = 12, 19, 30, 28
KINDS = [2, 4, 5, UTF8, 18, PRINTABLE, 20, 22, 23, 25, 26, 27, UNIVERSAL, BMP]
KINDS += [UTF8, PRINTABLE] * 5
LETTERS = [
    *"aZ09 =#,+<>;\"\\/'()[]{}$^|*?.:&~%@-_",
    " ",
    " ",
    "=",
    "#",
    "\0",
    "\n",
    "\r",
    "\t",
    "\x0b",
    "\x1f",
]
LETTERS += [
    "\x7f",
    "\x85",
    "\xa0",
    "é",
    "ß",
    "İ",
    "\u0131",
    "K",
    "Σ",
    "\u0301",
    "\u2028",
    "\ufeff",
    "\ufffd",
    "山",
    "😀",
    "tenant",
]


def answers(questions: list[tuple[str, ...]]) -> list[str]:
    command = [java(), "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_lib()}/*"]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name("PrincipalNames.java"))],
        input="".join(" ".join(words) + "\n" for words in questions),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [b64decode(line).decode() for line in done.stdout.splitlines()]


def word(text: str | bytes) -> str:
    return b64encode(text if isinstance(text, bytes) else text.encode()).decode()


def element(kind: int, content: bytes) -> bytes:
    size = len(content)
    if size < 128:
        return bytes([kind, size]) + content
    digits = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([kind, 128 + len(digits)]) + digits + content


def identifier(number: str) -> bytes:
    first, second, *others = map(int, number.split("."))
    content = b""
    for one in (first * 40 + second, *others):
        digits = [one & 127]
        while one := one >> 7:
            digits.append(one & 127 | 128)
        content += bytes(reversed(digits))
    return element(6, content)


def subject(chance: Random) -> bytes:
    def attribute() -> bytes:
        number = chance.choice(chance.choice([NUMBERS, COMMON]))
        text = "".join(chance.choices(LETTERS, k=chance.choice([0, 1, 2, 3, 6, 150])))
        kind = chance.choice(KINDS)
        encoding = {BMP: "utf-16-be", UNIVERSAL: "utf-32-be"}.get(kind, "utf-8")
        value = text.encode(encoding)
        if chance.randrange(10) == 0:
            value = text.encode("latin-1", "ignore")
        return element(0x30, identifier(number) + element(kind, value))

    def entry() -> bytes:
        return element(
            0x31, b"".join(sorted(attribute() for _ in range(chance.choice([1, 1, 1, 2, 3]))))
        )

    return element(0x30, b"".join(entry() for _ in range(chance.randrange(5))))


def test_the_name_of_a_certificate_is_javas() -> None:
    chance = Random(SEED)
    subjects = [subject(chance) for _ in range(SUBJECTS)]
    expected = answers([("name", word(one)) for one in subjects])
    refused = 0
    for one, name in zip(subjects, expected, strict=True):
        if name.startswith("!"):  # Java reads no such certificate
            refused += 1
        else:
            assert distinguished_name(one) == name, one.hex()
    assert refused < SUBJECTS / 20


PIECES = [
    *"abCN=,.*+?|^$()[]{}-&/1 #~",
    "CN=",
    r"\/",
    r"\.",
    r"\d",
    r"\w",
    r"\s",
    r"\D",
    r"\W",
    r"\S",
    r"\t",
    r"\n",
]
PIECES += [
    r"\x41",
    r"\u00e9",
    r"\Q.*\E",
    r"\Qa",
    r"\A",
    r"\z",
    r"\Z",
    r"\1",
    r"\2",
    r"\k<n>",
    r"\p{L}",
    r"\h",
    r"\R",
]
PIECES += [
    r"\0101",
    r"\x{41}",
    r"\cA",
    r"\e",
    r"\v",
    r"\G",
    r"\N",
    r"\X",
    "é",
    "ß",
    "K",
    "😀",
    "\n",
    "(?:",
    "(?=",
    "(?!",
]
PIECES += [
    "(?<n>",
    "(?<=",
    "(?<!",
    "(?>",
    "(?i)",
    "(?i:",
    "(?-i:",
    "(?s)",
    "(?x)",
    "(?u)",
    "(?P<n>",
    "(.*)",
    "(.*?)",
    "[a-z]",
]
PIECES += [
    "[^,]*",
    "[abC]",
    "[A-Z]+",
    r"[\w.]+",
    "[a-c&&b]",
    "[a[b]]",
    "[]a]",
    "[a-]",
    "[-a]",
    "{2}",
    "{1,}",
    "{,2}",
    "*+",
    "??",
]
NAMES = [
    "CN=abc,OU=b",
    "CN=ab",
    "abC",
    "aab1",
    "CN=é,O=ß",
    "CN=a.b/c",
    "CN=K",
    "cn=k",
    "CN=a\nb",
    "a\r",
    "a\u2028",
    "a1 b_c",
    "\u0661",
    "",
]
USUAL = [
    "CN=",
    "a",
    "b",
    "(.*)",
    "(.*?)",
    "[^,]*",
    r"\w+",
    "[a-zA-Z]*",
    ".*",
    "^",
    "$",
    ",",
    "(?i)",
    "(a|b)",
    "(?<n>.)",
]
REPLACEMENTS = [
    "$1",
    "x$1y",
    "$0",
    "${n}",
    "$1@$2",
    "$12",
    r"\$1",
    r"a\/b",
    "$3",
    "$",
    "x",
    "",
    r"\\",
    "é$1",
]


def pattern(chance: Random) -> str:
    made = "".join(
        chance.choice(PIECES if chance.randrange(4) == 0 else USUAL)
        for _ in range(chance.randint(1, 7))
    )
    if chance.randrange(3):
        made += ")" * (made.count("(") - made.count(")"))
    return made if chance.randrange(2) else f"{made}.*"


def test_a_rule_that_is_taken_has_kafkas_result() -> None:
    chance = Random(SEED)
    made = [
        f"RULE:{pattern(chance)}/{chance.choice(REPLACEMENTS)}/{chance.choice(['', 'L', 'U'])}"
        for _ in range(RULES)
    ]
    taken = []
    for text in made:
        with suppress(BadValue):
            taken.append((text, parse_rules(text)))
    asked = [(text, rules, name) for text, rules in taken for name in NAMES]
    matched = different = 0
    for (text, rules, name), expected in zip(
        asked, answers([("rule", word(text), word(name)) for text, _, name in asked]), strict=True
    ):
        result = rules[0].apply(name)
        assert ("?" if result is None else result) == expected, (text, name)
        matched += result is not None
        different += result is not None and result != name
    assert len(taken) > RULES / 4
    assert min(matched, different) > len(asked) / 10


def test_the_text_of_an_address_is_javas() -> None:
    chance = Random(SEED)
    addresses = [
        IPv6Address(
            chance.choice([0, 0, 0xFFFF << 32, chance.getrandbits(128)])
            | chance.getrandbits(chance.choice([1, 8, 32]))
        )
        for _ in range(ADDRESSES)
    ]
    texts = [
        chance.choice([str(one), one.exploded, one.compressed.upper(), f"[{one}]"])
        for one in addresses
    ]
    for text, expected in zip(
        texts, answers([("host", word(text)) for text in texts]), strict=True
    ):
        assert address_text(text) == expected, text
