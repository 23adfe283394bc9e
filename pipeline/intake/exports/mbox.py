"""Mail in an mbox file, as Thunderbird, Apple Mail and Google Takeout write it (RFC 4155, RFC 5322).

A thread is a conversation: mails that name each other in References or In-Reply-To, or have one of Gmail's
thread ids. Quoted text and signatures are removed, because the quoted mail comes before.
"""

import re
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import parseaddr, parsedate_to_datetime
from typing import Any, NamedTuple, cast

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import Conversation, Export, Head, Notes, Records
from pipeline.intake.exports.mail_text import own_words
from pipeline.intake.exports.markdown import markdown_of
from pipeline.intake.exports.people import Message, conversation_of, spoken

MAILBOX = "mailbox"  # layout of such a file
IDS = re.compile(r"<([^<>\s]+)>")


class Mail(NamedTuple):
    """A mail, and the mail that it answers."""

    message: Message
    depth: int  # mails before it in its thread, according to its header


def is_head(head: Head) -> bool:
    """Return True for a mailbox."""
    return head.layout == MAILBOX


def read(records: Records, notes: Notes) -> Iterator[Conversation]:
    """Yield the threads. The texts of all mails are in memory."""
    threads: dict[str, list[Mail]] = {}
    thread_of: dict[str, str] = {}  # id of a mail → its thread
    for number, offset, value in records:
        try:
            if isinstance(value, BadLine):
                raise value
            mail, related = _mail(number, value, notes)
        except BadLine as why:
            yield Conversation(number, offset, why)
            continue
        place = mail.message.place
        known = thread_of.get(place)
        if known is not None and any(earlier.message.place == place for earlier in threads.get(known, ())):
            notes["messages_repeated"] += 1
            continue
        thread = next(
            (thread_of[name] for name in (place, *related) if name in thread_of), (*related, place)[0]
        )
        for name in (place, *related):
            thread_of.setdefault(name, thread)
        threads.setdefault(thread, []).append(mail)
    for mails in threads.values():
        messages = [mail.message for mail in sorted(mails, key=_order) if mail.message.words]
        notes["empty_messages"] += len(mails) - len(messages)
        yield from map(conversation_of, spoken(messages, notes))


def _order(mail: Mail) -> tuple[int, float]:
    """Return the sort key of the mails of a thread. Depth comes first, because clocks differ."""
    return mail.depth, mail.message.time


def _mail(number: int, data: Any, notes: Notes) -> tuple[Mail, list[str]]:
    """Return a mail, and the ids of the mails or threads that it belongs to. Raises `BadLine`."""
    try:
        parsed = message_from_bytes(data, policy=policy.default)
        references = IDS.findall(str(parsed.get("References", "")))
        answered = IDS.findall(str(parsed.get("In-Reply-To", "")))
        gmail = str(parsed.get("X-GM-THRID", ""))
        ids = IDS.findall(str(parsed.get("Message-ID", "")))
        _, address = parseaddr(str(parsed.get("From", "")))
        time = _seconds(str(parsed.get("Date", "")))
        text = _text(parsed)
        attached = sum(1 for _ in parsed.iter_attachments())
    except Exception as error:  # The library raises any exception for a damaged mail.
        raise BadLine("bad_shape", f"the mail can't be read ({type(error).__name__})") from None
    if not address and not ids:
        raise BadLine("bad_shape", "this is no mail: it has neither From nor Message-ID")
    notes["attachments"] += attached
    before = list(dict.fromkeys((*references, *answered)))
    message = Message(
        place=ids[0] if ids else f"mail {number}",
        number=number,
        author=address.lower() or "unknown",
        is_bot=False,
        words=own_words(text, notes),
        time=time,
        follows=before[-1] if before else None,
    )
    return Mail(message, len(before)), [*([f"gmail {gmail}"] if gmail else []), *before]


def _seconds(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _text(mail: EmailMessage) -> str:
    """Return the mail's text, with HTML converted to Markdown."""
    body = mail.get_body(("plain", "html"))
    if body is None:
        return ""
    try:
        words = body.get_content()
    except LookupError:  # an unknown encoding
        words = cast(bytes, body.get_payload(decode=True)).decode("utf-8", "replace")
    return markdown_of(words) if body.get_content_subtype() == "html" else str(words)


EXPORT = Export("mbox", is_head, read)
