"""The reason of a failed store request: one line from obstore's error, without secrets."""

import pytest

from stratalog.adapters.store_failures import error_code, is_refusal, reason_of

REQUEST = "Error performing GET http://key:oops@host:9000/b/p/x in 1.2ms"
UNREACHED = f"{REQUEST}, after 8 retries  - HTTP error: error sending request\n\nDebug source:\n"
ANSWER = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{}</Code><Message>Not this key.</Message>'
    "<AWSAccessKeyId>oops</AWSAccessKeyId><Token-0>oops</Token-0></Error>\n\nDebug source:\noops"
)


def refused(status: str, code: str) -> str:
    message = f"{REQUEST} - Server returned non-2xx status code: {status}: "
    return f"Generic S3 error: {message}{ANSWER.format(code)}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            refused("403 Forbidden", "InvalidAccessKeyId"),
            "host:9000 answered 403 Forbidden InvalidAccessKeyId: Not this key.",
        ),
        (
            f"{REQUEST} - Server returned non-2xx status code: 503 Slow Down: ",
            "host:9000 answered 503 Slow Down",
        ),
        (
            f'Generic S3 error: {UNREACHED}message: "Connection refused",',
            "host:9000 cannot be reached: Connection refused",
        ),
        (
            f"{UNREACHED}InvalidCertificate(\n    UnknownIssuer,",
            "host:9000 cannot be reached: no trusted authority signed the server's certificate",
        ),
        (
            f"{UNREACHED}nothing known",
            "host:9000 cannot be reached: no answer",
        ),
        (
            f"{REQUEST} - Received redirect without LOCATION\n\n",
            "host:9000: Received redirect without LOCATION",
        ),
        ("Generic GCS error: Unable to decode\n\nDebug source:\noops", "Unable to decode"),
    ],
)
def test_a_failure_is_one_line_with_the_server_and_without_secrets(text: str, reason: str) -> None:
    assert reason_of(text) == reason
    assert "oops" not in reason


def test_failures_that_a_stores_keys_cause_are_recognised() -> None:
    assert is_refusal(refused("403 Forbidden", "AccessDenied"))
    assert is_refusal(refused("401 Unauthorized", ""))
    assert is_refusal(refused("400 Bad Request", "ExpiredToken"))
    assert not is_refusal(refused("400 Bad Request", "EntityTooLarge"))
    assert not is_refusal("4031 things")
    assert error_code(refused("404 Not Found", "NoSuchBucket")) == "NoSuchBucket"
    assert error_code("nothing") is None
