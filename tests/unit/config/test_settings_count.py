"""Code reads each setting of the tables, so no documented setting is without effect."""

from pathlib import Path

from stratalog.config import LogConfig
from stratalog.config.broker_settings import BROKER_SETTINGS
from stratalog.config.topic_settings import TOPIC_SETTINGS


def product(repository: Path, *without: str) -> str:
    """Return the product's source as one text, without the files named."""
    files = (repository / "src" / "stratalog").rglob("*.py")
    return "\n".join(path.read_text() for path in files if path.name not in without)


def test_every_broker_setting_is_read(repository: Path) -> None:
    text = product(
        repository,
        "broker_settings.py",
        "log_settings.py",
        "tier_settings.py",
        "topic_settings.py",
        "transaction_settings.py",
    )
    synonyms = {synonym.name for topic in TOPIC_SETTINGS.values() for synonym in topic.synonyms}
    honoured = [name for name, setting in BROKER_SETTINGS.items() if not setting.inert]
    unread = [name for name in honoured if f'"{name}"' not in text and name not in synonyms]
    assert not unread, f"nothing reads {unread}: honour them, or move them to kafka_only.py"
    inert = [name for name, setting in BROKER_SETTINGS.items() if setting.inert]
    read = [name for name in inert if f'("{name}")' in text]
    assert not read, f"{read} have an effect: take them out of kafka_only.py"


def test_every_topic_setting_is_read(repository: Path) -> None:
    text = product(repository, "topic_settings.py")
    text += (repository / "src" / "stratalog" / "log" / "partition_log.py").read_text()
    inert = {name.replace(".", "_") for name, t in TOPIC_SETTINGS.items() if t.setting.inert}
    unread = [n for n in LogConfig.__struct_fields__ if f".{n}" not in text and n not in inert]
    assert not unread, f"nothing reads {unread}: honour them, or mark them inert"
