"""Tickets of Zendesk with their comments, a ticket a line, in the form of the account's JSON export.

After <https://developer.zendesk.com/api-reference/ticketing/tickets/ticket_comments/> and …/tickets/tickets/
(2024 to 2026). A ticket has `requester_id`, `collaborator_ids` and `comments`. A comment has `author_id`,
`public`, `body`, `plain_body`, `html_body` and `attachments`. Comments of the requester and of people in copy
are the user's, all others the assistant's.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.answers import objects, texts
from pipeline.intake.exports.export import Export, Head, Notes, each_record
from pipeline.intake.exports.markdown import markdown_of
from pipeline.intake.exports.people import Message, row_of, spoken

IN_COPY = ("collaborator_ids", "email_cc_ids", "follower_ids")
NO_BREAK_SPACES = ("\N{NO-BREAK SPACE}", "&nbsp;")


def is_head(head: Head) -> bool:
    """Return True if a record is a ticket with comments."""
    return any(_is_ticket(value) for value in head.objects())


def _is_ticket(value: Mapping[str, Any]) -> bool:
    comments = objects(value.get("comments"))
    return "requester_id" in value and any("author_id" in comment for comment in comments)


def rows_of(ticket: dict[str, Any], notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the row of a ticket."""
    comments = ticket.get("comments")
    requester = ticket.get("requester_id")
    if requester is None or not isinstance(comments, list):
        raise BadLine("bad_shape", "a ticket of Zendesk has requester_id and a list comments")
    asking = {requester}
    for key in IN_COPY:
        listed = ticket.get(key)
        asking.update(listed if isinstance(listed, list) else ())
    asking.discard(ticket.get("assignee_id"))
    messages = []
    for number, comment in enumerate(comments, start=1):
        if not isinstance(comment, dict) or not isinstance(comment.get("author_id"), int | str):
            raise BadLine("bad_shape", f"comments {number} has no author_id")
        if comment.get("public") is False:
            notes["private_comments"] += 1
            continue
        notes["attachments"] += len(objects(comment.get("attachments")))
        words = _words(comment)
        if not words:
            notes["empty_messages"] += 1
            continue
        author = comment["author_id"]
        messages.append(Message(str(number), number, str(author), author not in asking, words, 0.0, None))
    yield from map(row_of, spoken(messages, notes))


def _words(comment: Mapping[str, Any]) -> str:
    """Return a comment's text, or that of its HTML. Some have no-break spaces, also as HTML entities."""
    plain = texts(comment.get("body")) or texts(comment.get("plain_body"))
    words = plain or markdown_of(texts(comment.get("html_body")))
    for space in NO_BREAK_SPACES:
        words = words.replace(space, " ")
    return words.strip()


EXPORT = Export("zendesk", is_head, each_record(rows_of))
