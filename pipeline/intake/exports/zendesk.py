"""Tickets of Zendesk with their comments, a ticket a line, in the form of the account's JSON export.

After <https://developer.zendesk.com/api-reference/ticketing/tickets/ticket_comments/> and …/tickets/tickets/
(2024 to 2026). A ticket has `requester_id`, `collaborator_ids` and `comments`. A comment has `author_id`,
`public`, `body`, `plain_body`, `html_body` and `attachments`. Comments of the requester and of people in copy
are the user's, all others the assistant's.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import Export, Notes, any_record, each_record
from pipeline.intake.exports.markdown import markdown_of
from pipeline.intake.exports.people import Message, row_of, spoken
from pipeline.intake.exports.view import View


def _is_ticket(value: View) -> bool:
    return "requester_id" in value and any("author_id" in comment for comment in value.objects("comments"))


def rows_of(ticket: View, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the row of a ticket."""
    if ticket.get("requester_id") is None or not ticket.has("comments", list):
        raise BadLine("bad_shape", "a ticket of Zendesk has requester_id and a list comments")
    asking = [ticket["requester_id"]]
    for key in ("collaborator_ids", "email_cc_ids", "follower_ids"):
        asking += ticket.array(key)
    messages = []
    for number, comment in enumerate(ticket.elements("comments"), start=1):
        if not comment.has("author_id", int | str):
            raise BadLine("bad_shape", f"comments {number} has no author_id")
        if comment.get("public") is False:
            notes["private_comments"] += 1
            continue
        notes["attachments"] += len(comment.objects("attachments"))
        words = _words(comment)
        if not words:
            notes["empty_messages"] += 1
            continue
        author = comment["author_id"]
        is_staff = author not in asking or author == ticket.get("assignee_id")
        messages.append(Message(str(number), number, str(author), is_staff, words))
    yield from map(row_of, spoken(messages, notes))


def _words(comment: View) -> str:
    """Return a comment's text, or that of its HTML. Some have no-break spaces, also as HTML entities."""
    plain = comment.texts("body") or comment.texts("plain_body")
    words = plain or markdown_of(comment.texts("html_body"))
    for space in ("\N{NO-BREAK SPACE}", "&nbsp;"):
        words = words.replace(space, " ")
    return words.strip()


EXPORT = Export("zendesk", any_record(_is_ticket), each_record(rows_of))
