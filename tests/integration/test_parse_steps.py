"""The steps of Java's matcher are linear in the length of any line: the test counts steps, not time.

Method: the lines are Java texts that count how often the matcher asks for a character.
"""

from pathlib import Path

import pyspark
import pytest
from combined import LINE, REASONS
from py4j.java_gateway import CallbackServerParameters, JavaGateway

from stratalog.cli.pipeline import spark_environment

TIME = "[17/May/2015:10:05:03 +0000]"
HEAD = f"h - - {TIME}"
SMALL = 400
STEPS_MAX = 20
"""Steps for each character of the longest line."""

HOSTILE = {
    "times with quotes behind them": ("h - - ", f'{TIME} "'),
    "times": ("h - - ", TIME),
    "times cut short": ("h - - ", TIME[:-1]),
    "brackets": ("h - - ", "["),
    "quotes": (f'{HEAD} "', '"'),
    "quotes with spaces": (f'{HEAD} "', '" '),
    "escaped quotes": (f'{HEAD} "', '\\"'),
    "backslashes": (f'{HEAD} "', "\\"),
    "statuses cut short": (f'{HEAD} "', '" 20'),
    "statuses": (f'{HEAD} "', '" 200'),
    "a referrer without end": (f'{HEAD} "" 200 1 "', '\\"'),
    "agents": (f'{HEAD} "" 200 1 "" "', '" 1 '),
    "an agent without end": (f'{HEAD} "" 200 1 "" "', "x"),
    "words in quotes": (f'{HEAD} "" 200 1 "" "', 'a "b" '),
    "quotes behind words": (f'{HEAD} "" 200 1 "" "', 'a" '),
    "fields behind an agent": (f'{HEAD} "" 200 1 "" "a', '" "b'),
    "forwarded addresses": ("", "1.1.1.1, "),
    "a long host": ("", "a:"),
    "spaces": ("", " "),
    "words": ("", "a "),
    "a word": ("", "a"),
}


class CountedText:
    """A Java text that counts accesses; after `limit` of them it ends the match with an error."""

    def __init__(self, text: str, limit: int) -> None:
        self._text = text
        self._limit = limit
        self.steps = 0

    def charAt(self, index: int) -> str:
        self.steps += 1
        assert self.steps <= self._limit, f"more than {self._limit} steps"
        return self._text[index]

    def length(self) -> int:
        return len(self._text)

    def subSequence(self, start: int, end: int) -> str:
        return self._text[start:end]

    class Java:
        """The Java interface, which py4j looks up."""

        implements = ("java.lang.CharSequence",)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory):
    """A JVM that calls this process."""
    environment = spark_environment(tmp_path_factory.mktemp("java"), master="local")
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("py4j*.jar")
    gateway = JavaGateway.launch_gateway(
        jarpath=str(jar), java_path=f"{environment['JAVA_HOME']}/bin/java", die_on_exit=True
    )
    gateway.start_callback_server(CallbackServerParameters(port=0))
    server = gateway.java_gateway_server
    server.resetCallbackClient(
        server.getCallbackClient().getAddress(),
        gateway.get_callback_server().get_listening_port(),
    )
    yield gateway
    gateway.shutdown_callback_server()
    gateway.shutdown()
    gateway.java_process.stdin.close()
    gateway.java_process.wait(30)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_line_twice_as_long_takes_twice_the_steps(java, kind):
    head, again = HOSTILE[kind]
    for name, pattern in (("line", LINE), *REASONS):
        compiled = java.jvm.java.util.regex.Pattern.compile(pattern)
        steps = []
        for size in (SMALL, 2 * SMALL):
            line = CountedText(head + again * (size // len(again)), STEPS_MAX * size)
            compiled.matcher(line).find()
            steps.append(line.steps)
        assert steps[1] <= 2.2 * steps[0] + len(head), name
