"""The options of `.format("stratalog_opensearch")`: each is valid, or refused in one line with the remedy."""

import pytest

from stratalog.sinks.opensearch_options import parse_opensearch_options

LEAST = {"hosts": "search", "index": "access"}


def test_the_required_options_and_the_defaults() -> None:
    options = parse_opensearch_options(LEAST)
    assert options.hosts == ("http://search:9200",)
    assert (options.worker, options.bulk_max_size, options.retries_max) == (1, 1600, 10)
    assert (options.backoff_init_s, options.backoff_max_s, options.timeout_s) == (1, 60, 90)
    assert not options.settings, "the index templates decide the settings"
    assert options.dead_letter_index is None


def test_the_references_settings_are_accepted_by_their_names() -> None:
    options = parse_opensearch_options(
        {
            **LEAST,
            "index.number_of_shards": "36",
            "INDEX.number_of_replicas": "0",  # Spark's options ignore case
            "index.refresh_interval": "30s",
            "worker": "2",
            "bulk_max_size": "4096",
            "checkpointLocation": "of Spark",
            "queryName": "of Spark",
        }
    )
    assert options.settings == {
        "index.number_of_shards": "36",
        "index.number_of_replicas": "0",
        "index.refresh_interval": "30s",
    }
    assert (options.worker, options.bulk_max_size) == (2, 4096)


def test_hosts_are_parsed_as_addresses() -> None:
    given = {**LEAST, "hosts": "a, https://b:9201/ ,http://[::1]:1"}
    assert parse_opensearch_options(given).hosts == (
        "http://a:9200",
        "https://b:9201",
        "http://[::1]:1",
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"hosts": ""}, "option 'hosts' must say where to write"),
        ({"index": " "}, "option 'index' must say where to write"),
        ({"hosts": ","}, "names none"),
        ({"hosts": "ftp://a"}, "'ftp://a': http://host:port"),
        ({"hosts": "http://a:70000"}, "'http://a:70000': http://host:port"),
        ({"hosts": "http://a/path"}, "http://host:port or https://host:port is needed"),
        ({"index": "Access"}, "'Access': OpenSearch wants lower case"),
        ({"index": "_access"}, "no _ - + . in front"),
        ({"dead_letter_index": "a b"}, "option 'dead_letter_index' is 'a b'"),
        ({"worker": "0"}, "option 'worker' is '0'"),
        ({"bulk_max_size": "many"}, "option 'bulk_max_size' is 'many'"),
        ({"max_retries": "-1"}, "option 'max_retries' is '-1'"),
        ({"index.number_of_shards": "0"}, "option 'index.number_of_shards' is '0'"),
        ({"index.number_of_replicas": "x"}, "option 'index.number_of_replicas' is 'x'"),
        ({"index.refresh_interval": "soon"}, "30s, 500ms, 1m … or -1"),
        ({"backoff.init": "0s"}, "option 'backoff.init' is '0s'"),
        ({"timeout": "fast"}, "a time like 500ms, 30s or 2m"),
        ({"workers": "2"}, "unknown option 'workers' of a sink: did you mean 'worker'?"),
        ({"bulk.max.size": "2"}, "did you mean 'bulk_max_size'?"),
        ({"number_of_shards": "2"}, "did you mean 'index.number_of_shards'?"),
        ({"kafka.acks": "all"}, "see docs/opensearch.md"),
    ],
)
def test_a_wrong_option_is_one_clear_line(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=r"option") as error:
        parse_opensearch_options({**LEAST, **given})
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        {"password": "hunter2"},
        {"Username": "hunter2"},
        {"hosts": "http://user:hunter2@search"},
        {"hosts": "https://hunter2@search:9200"},
    ],
)
def test_secrets_are_no_options_and_are_not_repeated(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="OPENSEARCH_") as error:
        parse_opensearch_options({**LEAST, **given})
    assert "hunter2" not in str(error.value)
