"""Chat templates without a clock: a template that prints today's date is rewritten to print a fixed one.

Tokens would otherwise depend on the day and the time zone in which they are made, and a model would be served
with another date than it was trained with. The date is written into the template itself. So transformers, our
own renderer and llama-server, which all have a clock of their own, print the same.
"""

import re
from datetime import date, datetime

from pipeline.chat.template import environment

# Variables that llama-server sets from its clock in every template, in its format (common_chat_extra_context
# in common/chat.cpp). transformers sets none.
SERVER_VARIABLES = {"date_string": "%d %b %Y", "datetime": "%b %d %Y"}
CALL = "strftime_now"
CLOCKS = (CALL, *SERVER_VARIABLES)  # strings of which one is in every template that reads the date
# A call whose only argument is a text: its quote, and the format between the quotes.
LITERAL_CALL = re.compile(
    rf"""\b{CALL}\s*\(\s*(?:format\s*=\s*)?(["'])((?:\\.|(?!\1)[^\\])*)\1\s*,?\s*\)""", re.DOTALL
)


class NotFixed(ValueError):
    """Error for a template that reads the time in a way that can't be replaced by a text."""


def without_clock(template: str, day: date) -> str:
    """Return the template with `day` wherever it reads today's date, or the same text if it reads none.

    A format that is written as a text becomes the date. The variables in which llama-server passes its date
    are set first of all. Raises `NotFixed` for a format that is computed.
    """
    moment = datetime(day.year, day.month, day.day)
    fixed = LITERAL_CALL.sub(lambda match: f"{match[1]}{moment.strftime(match[2])}{match[1]}", template)
    names, calls = _asked_for(fixed)
    if calls:
        raise NotFixed(
            f"{CALL} is called with a format that is computed, so its date can't be fixed: write the format "
            "as a text into the call"
        )
    # Each is on a line of its own, and the line break belongs to the tag: the template begins as it did.
    lines = [
        f'{{%- set {name} = "{moment.strftime(form)}" %}}\n'
        for name, form in SERVER_VARIABLES.items()
        if name in names
    ]
    return "".join([*lines, fixed])


def _asked_for(template: str) -> tuple[set[str], bool]:
    """Return the variables that the template reads before it sets them, and True if it calls the clock."""
    from jinja2 import meta, nodes

    tree = environment().parse(template)
    tested = {id(test.node) for test in tree.find_all(nodes.Test) if test.name in ("defined", "undefined")}
    calls = any(name.name == CALL and id(name) not in tested for name in tree.find_all(nodes.Name))
    return meta.find_undeclared_variables(tree), calls
