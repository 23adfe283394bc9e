"""Detection of keys, tokens and passwords in a text: keys of a known format, and secrets by their context.

The formats that vendors publish are the rules of detect-secrets, and a table of their gaps. One pass of
Aho-Corasick searches for the needles of all formats (`ghp_`, `-----BEGIN` …). A regular expression is tried
only at a needle, so a text without any costs microseconds and no text takes more than linear time.
"""

import re
import string
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from ahocorasick_rs import AhoCorasick, Implementation
from detect_secrets.plugins.aws import AWSKeyDetector
from detect_secrets.plugins.azure_storage_key import AzureStorageKeyDetector
from detect_secrets.plugins.discord import DiscordBotTokenDetector
from detect_secrets.plugins.github_token import GitHubTokenDetector
from detect_secrets.plugins.mailchimp import MailchimpDetector
from detect_secrets.plugins.pypi_token import PypiTokenDetector
from detect_secrets.plugins.sendgrid import SendGridDetector
from detect_secrets.plugins.slack import SlackDetector
from detect_secrets.plugins.square_oauth import SquareOAuthDetector
from detect_secrets.plugins.stripe import StripeDetector
from detect_secrets.plugins.telegram_token import TelegramBotTokenDetector
from detect_secrets.plugins.twilio import TwilioKeyDetector

# Two scanners whose tables of formats are public and maintained: gitleaks.toml, and pkg/detectors.
GITLEAKS = "github.com/gitleaks/gitleaks"
TRUFFLEHOG = "github.com/trufflesecurity/trufflehog"
PLACEHOLDER = re.compile(r"\[[A-Z][A-Z0-9_]*\]")  # Placeholders of redaction are not part of a secret.
_SWITCH = re.compile(r"[A-Za-z](?=[0-9])|[0-9](?=[A-Za-z])")


def mixed(value: str) -> bool:
    """Return True if the value is neither `xxxxxxxx` nor an example from a vendor's documentation."""
    return len(set(value)) > 7 and "EXAMPLE" not in value


class Format(NamedTuple):
    """Format of a kind of secret."""

    kind: str
    needles: tuple[str, ...]  # strings of which a text with such a secret contains at least one
    # pattern whose group `value` is the secret, or the entire match if there is no group
    pattern: re.Pattern[str]
    source: str  # place at which the format is published
    before: tuple[int, ...] = (0,)  # numbers of characters by which a match may begin before its needle
    valid: Callable[[str], bool] = mixed
    rank: int = 2


def key(kind: str, prefixes: str, tail: str, source: str) -> Format:
    """Return the format of a key that is one of the prefixes, then `tail`. The key ends with its run of
    letters and digits.
    """
    needles = tuple(prefixes.split())
    return Format(
        kind,
        needles,
        re.compile(
            rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, needles))})(?:{tail})[A-Za-z0-9]*+", re.ASCII
        ),
        source,
    )


def library(
    kind: str, needles: str, rules: Iterable[re.Pattern[str]], before: tuple[int, ...] = (0,)
) -> Format:
    """Return the format of a key by rules of detect-secrets, with a bound on the left and its entire run on
    the right: some of the rules stop within the key.
    """
    either = "|".join(
        f"(?{'i' * bool(rule.flags & re.I)}{'x' * bool(rule.flags & re.X)}:{rule.pattern})" for rule in rules
    )
    return Format(
        kind,
        tuple(needles.split()),
        re.compile(rf"(?<![A-Za-z0-9])(?:{either})[\w-]*+", re.ASCII),
        "detect-secrets",
        before,
    )


KEY_FORMATS = (
    library("aws_access_key", "AKIA ASIA ABIA ACCA A3T", AWSKeyDetector.denylist[:1]),
    library("azure_storage_key", "AccountKey=", AzureStorageKeyDetector.denylist),
    # Base64 of a digit and the next one.
    library("discord_token", "MT Mj Mz ND NT Nj Nz OD OT", DiscordBotTokenDetector.denylist),
    library("github_token", "ghp_ gho_ ghu_ ghs_ ghr_", GitHubTokenDetector.denylist),
    library("mailchimp_key", "-us", MailchimpDetector.denylist, before=(32,)),
    library("pypi_token", "pypi-AgE", PypiTokenDetector.denylist),
    library("sendgrid_key", "SG.", SendGridDetector.denylist),
    library("slack_token", "xoxa- xoxb- xoxp- xoxo- xoxs- xoxr-", SlackDetector.denylist[:1]),
    library("slack_webhook", "https://hooks.slack.com/", SlackDetector.denylist[1:2]),
    library("square_token", "sq0csp-", SquareOAuthDetector.denylist),
    library("stripe_key", "sk_live_ rk_live_", StripeDetector.denylist),
    library("telegram_token", ":AA", TelegramBotTokenDetector.denylist, before=(10, 9, 8)),
    library("twilio_key", "AC SK", TwilioKeyDetector.denylist),
    key("adobe_secret", "p8e-", r"[A-Za-z0-9]{32}", GITLEAKS),
    key("age_key", "AGE-SECRET-KEY-1", r"[A-Z0-9]{58}", GITLEAKS),
    key("airtable_token", "pat", r"[A-Za-z0-9]{14}\.[a-f0-9]{64}", GITLEAKS),
    key("alibaba_key", "LTAI", r"[A-Za-z0-9]{16,20}", GITLEAKS),
    key("anthropic_key", "sk-ant-", r"[\w-]{80,}+", GITLEAKS),
    key("atlassian_token", "ATATT3 ATCTT3", r"[\w=-]{60,}+", GITLEAKS),
    key("brevo_key", "xkeysib- xsmtpsib-", r"[a-f0-9]{64}-[A-Za-z0-9]{16}", GITLEAKS),
    key("databricks_token", "dapi", r"[a-f0-9]{32}(?:-\d)?", GITLEAKS),
    key("digitalocean_token", "dop_v1_ doo_v1_ dor_v1_", r"[a-f0-9]{64}", GITLEAKS),
    key(
        "discord_webhook",
        "https://discord.com/api/webhooks/ https://discordapp.com/api/webhooks/",
        r"\d{17,20}/[\w-]{60,}+",
        TRUFFLEHOG,
    ),
    key("docker_token", "dckr_pat_ dckr_oat_", r"[\w-]{27,}+", TRUFFLEHOG),
    key("doppler_token", "dp.pt. dp.st. dp.ct.", r"[\w.-]{40,}+", GITLEAKS),
    key("dynatrace_token", "dt0c01. dt0s01.", r"[A-Z0-9]{24}\.[A-Z0-9]{64}", GITLEAKS),
    key("figma_token", "figd_ figo_", r"[\w-]{40,}+", TRUFFLEHOG),
    key("flyio_token", "fm2_ fm1r_ fm1a_", r"[A-Za-z0-9+/=]{100,}+", GITLEAKS),
    key("github_token", "github_pat_", r"\w{60,}+", GITLEAKS),
    key(
        "gitlab_token",
        "glpat- gldt- glft- glsoat- glrt- glcbt- glimt- glptt- glagent- gloas- glffct- GR1348941",
        r"[\w-]{20,}+(?:\.[a-z0-9]{2}\.[a-z0-9]{9}|\.[a-z0-9]{9})?",
        GITLEAKS,
    ),
    key("google_api_key", "AIza", r"[\w-]{35,}+", GITLEAKS),
    key("google_oauth", "ya29. GOCSPX-", r"[\w.-]{28,}+", TRUFFLEHOG),
    key("grafana_token", "glsa_ glc_", r"[\w+/=]{32,}+", GITLEAKS),
    key("groq_key", "gsk_", r"[A-Za-z0-9]{48,}+", TRUFFLEHOG),
    key("heroku_key", "HRKU-", r"[\w-]{36,}+", GITLEAKS),
    key("huggingface_token", "hf_ api_org_", r"[A-Za-z0-9]{30,}+", GITLEAKS),
    key("jwt", "eyJ", r"(?<![\w-]eyJ)[\w-]{8,}+\.eyJ[\w-]{8,}+(?:\.[\w-]*+)?", "RFC 7519"),
    key("langsmith_key", "lsv2_pt_ lsv2_sk_", r"[a-f0-9]{32}_[a-f0-9]{10}", TRUFFLEHOG),
    key("linear_key", "lin_api_ lin_oauth_", r"[A-Za-z0-9]{40}", GITLEAKS),
    key("mailgun_key", "key-", r"[a-f0-9]{32}\b", GITLEAKS),
    key("newrelic_key", "NRAK- NRII- NRJS-", r"[A-Za-z0-9-]{19,}+", GITLEAKS),
    key("notion_token", "ntn_ secret_", r"[A-Za-z0-9]{43,}+", GITLEAKS),
    key("npm_token", "npm_", r"[A-Za-z0-9]{36}", GITLEAKS),
    key("nvidia_key", "nvapi-", r"[\w-]{60,}+", TRUFFLEHOG),
    key("onepassword_token", "ops_eyJ", r"[\w+/=]{200,}+", GITLEAKS),
    key("openai_key", "sk-", r"(?:proj|svcacct|admin|None|or-v1)-[\w-]{40,}+|[A-Za-z0-9]{32,}+", GITLEAKS),
    key("perplexity_key", "pplx-", r"[A-Za-z0-9]{40,}+", GITLEAKS),
    key("planetscale_token", "pscale_tkn_ pscale_oauth_ pscale_pw_", r"[\w=.-]{32,}+", GITLEAKS),
    key("postman_key", "PMAK-", r"[a-f0-9]{24}-[a-f0-9]{34}", GITLEAKS),
    key("pulumi_token", "pul-", r"[a-f0-9]{40}", GITLEAKS),
    key("replicate_token", "r8_", r"[\w-]{37,}+", TRUFFLEHOG),
    key("rubygems_key", "rubygems_", r"[a-f0-9]{48}", GITLEAKS),
    key("sentry_token", "sntrys_ sntryu_", r"[\w+/=-]{60,}+", GITLEAKS),
    key("shopify_token", "shpat_ shpca_ shppa_ shpss_", r"[a-fA-F0-9]{32}", GITLEAKS),
    key("slack_token", "xapp- xoxe- xoxe.xox xoxb- xoxp-", r"[A-Za-z0-9-]{20,}+", GITLEAKS),
    key("slack_webhook", "https://hooks.slack.com/", r"(?:workflows|triggers)/[A-Za-z0-9/]{40,}+", GITLEAKS),
    key("square_token", "EAAA sq0atp-", r"[\w-]{22,}+", GITLEAKS),
    key("stripe_key", "sk_test_ rk_test_ whsec_", r"[A-Za-z0-9]{24,}+", GITLEAKS),
    key("supabase_token", "sbp_ sb_secret_", r"[\w-]{31,}+", TRUFFLEHOG),
    key("vault_token", "hvs. hvb. hvr.", r"[\w-]{24,}+", GITLEAKS),
    key("xai_key", "xai-", r"\w{60,}+", TRUFFLEHOG),
    Format(
        "terraform_token",
        (".atlasv1.",),
        re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{60,}+", re.ASCII),
        GITLEAKS,
        (14,),
    ),
)


def random_looking(value: str) -> bool:
    """Return True if the value looks like a generated key rather than a word, a path or a variable's name."""
    return mixed(value) and len(_SWITCH.findall(value)) > 2


_NO_PASSWORD = re.compile(  # a word, a placeholder of a template, a variable
    r"(?i:pass(?:w(?:or)?d)?\d*|change_?me\w*|test\d*|\w*secret|example\w*|[*x.]+|[<{$%].*)|(?:my|your)[a-z_-]*|(?:MY|YOUR)[A-Z_-]*|(?:My|Your)[A-Za-z]*"
)


def password_looking(value: str) -> bool:
    """Return True if the value looks like a real password, not a word, a template's placeholder, a variable,
    or a call.
    """
    various = re.search(r"[A-Za-z]", value) and re.search(r"[0-9!@#^&*+?]", value)
    return bool(various and len(set(value)) > 4 and url_password(value))


def url_password(value: str) -> bool:
    return len(value) > 2 and not _NO_PASSWORD.fullmatch(value) and not PLACEHOLDER.search(value)


def real_pem(value: str) -> bool:
    return bool(re.search(r"[A-Za-z0-9+/=]{30}", value))


def context(
    kind: str, needles: str, pattern: str, valid: Callable[[str], bool] = random_looking, rank: int = 1
) -> Format:
    """Return the format of a secret that can be recognized only by its context.

    The pattern begins at the needle.
    """
    return Format(
        kind,
        tuple(needles.split("|")),
        re.compile(pattern, re.ASCII),
        "name of a variable, header or field",
        (0,),
        valid,
        rank,
    )


class Span(NamedTuple):
    """Match text[start:end]. Of two that overlap the higher rank wins, then the longer one."""

    start: int
    end: int
    kind: str
    rank: int  # 2: a key of a known format · 1: a secret by its surroundings · 0: personal data


# Text after a telling name: the rest of the name, then `=`, `:` or `=>`; not `token_type=`, `password_file:`
# …
_ASSIGNED = (
    r"(?>(?:s\b|[A-Z0-9_-][\w-]{0,30}+)?)(?<!(?i:id))(?<!(?i:url|uri|dir|len|ids|arn))(?<!(?i:type|name|path|file|size))"
    r"(?<!(?i:field|count|limit|class|label|model))(?<!(?i:length))(?<!(?i:version))[\\\"'`\]]{0,4}+[ "
    r"\t]{0,4}+(?::=|=>|={1,3}+|:)[ \t]{0,4}+"
)
_PEM = (
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:[^-]*+(?>(?:-(?!----)[^-]*+)*)-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: "
    r"BLOCK)?-----|(?>(?:(?>(?:\s|\\[nr]){1,4})[A-Za-z0-9+/=]{20,100}+)*))"
)
_PEM_EDGE = re.compile(r"-----(?:(?P<begin>BEGIN)|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")

FORMATS = (
    *KEY_FORMATS,
    Format("private_key", ("-----BEGIN ",), re.compile(_PEM), "RFC 7468", (0,), real_pem),
    Format(
        "url_password",
        ("://",),
        re.compile(r"://[^\s/?#@:\"'`<>]{0,64}+:(?P<value>[^\s/?#@:\"'`<>]{1,128}+)@"),
        "RFC 3986",
        (0,),
        url_password,
    ),
    context(
        "aws_secret_key",
        "secret|Secret|SECRET",
        r"(?i:secret[_ -]?(?:access)?[_ -]?key)[\\\"'`\]]{0,4}\s{0,4}[:=]>?\s{0,4}[\\\"'`]{0,2}"
        r"(?P<value>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        mixed,
        rank=2,
    ),
    context(
        "bearer_token",
        "uthorization|UTHORIZATION",
        r"(?i:uthorization)[\\\"'`]{0,2}\s{0,3}[:=]\s{0,3}[\\\"'`]{0,2}(?i:bearer|basic|token|key)"
        r"\s{1,3}(?P<value>[\w.~+/=-]{16,}+)",
        mixed,
    ),
    context(
        "npm_token",
        ":_authToken",
        r":_authToken\s{0,2}=\s{0,2}[\"']?(?P<value>[A-Za-z0-9-]{36}+)",
        mixed,
        rank=2,
    ),
    context(
        "password",
        "passw|Passw|PASS|passphrase|Passphrase|_pass|pwd|Pwd|PWD",
        r"(?i:_?pass(?:w(?:or)?d|phrase)?|pwd)"
        + _ASSIGNED
        + r"\\?(?:(?P<q>[\"'`])(?P<quoted>[^\s\"'`\\]{6,128}+)\\?(?P=q)"
        r"|(?P<bare>[^\s\"'`\\<>(){}\[\],;&$|]{6,64}+)(?=[\s,;&\"'`\\|]|$))",
        password_looking,
    ),
    context(
        "secret",
        "secret|Secret|SECRET|token|Token|TOKEN|api_key|apikey|apiKey|ApiKey|API_KEY|APIKEY|api-key|Api-Key|API-Key|api key|API key|"  # noqa: E501
        "access_key|ACCESS_KEY|accessKey|AccessKey|auth_key|AUTH_KEY|authKey|credential|CREDENTIAL",
        r"(?i:secret|token|api[_ -]?key|access_?key|auth_?key|credential)"
        + _ASSIGNED
        + r"[\\\"'`]{0,2}(?P<value>[A-Za-z0-9+/_.~=-]{16,512}+)(?![(\[{$@])",
    ),
)

_WORDS = tuple(dict.fromkeys(needle for each in FORMATS for needle in each.needles))
_OWNERS = tuple(
    tuple(number for number, each in enumerate(FORMATS) if needle in each.needles) for needle in _WORDS
)
_NEEDLES = AhoCorasick(_WORDS, implementation=Implementation.DFA)
_LONGEST = max(map(len, _WORDS))
_IN_WORD = frozenset(string.ascii_letters + string.digits + "_")
_BEFORE = _IN_WORD | {"["}  # The bracket may open a placeholder.
# In JSON and code the `n` of `\nghp_…` is not a letter before the key.
_ESCAPE = re.compile(r"\\(?:[bfnrt]|u[0-9a-fA-F]{4})")
BLOCK = 1 << 18  # characters searched for needles at a time, which bounds the list of hits


def find_secrets(text: str) -> Iterator[Span]:
    """Yield the secrets in a text (without lone surrogates), in linear time. They may overlap."""
    searched = [0] * len(FORMATS)  # end of the last match of each format
    for base in range(0, len(text) or 1, BLOCK):
        block = text if len(text) <= BLOCK else text[base : base + BLOCK + _LONGEST - 1]
        for index, start, _ in _NEEDLES.find_matches_as_indexes(block, overlapping=True):
            at = base + start
            for number in _OWNERS[index]:
                if at >= searched[number]:
                    each = FORMATS[number]
                    for back in each.before:
                        match = each.pattern.match(text, at - back) if at >= back else None
                        if match:
                            searched[number] = match.end()
                            group = match.lastgroup or 0
                            if each.valid(match.group(group)):
                                yield Span(*match.span(group), each.kind, each.rank)
                            break


def find_private_keys(text: str) -> Iterator[Span]:
    """Yield the PEM private keys in a text that may be cut. A key without an end extends to the next one or
    to the end of the text.
    """
    edges = list(_PEM_EDGE.finditer(text)) if "-----BEGIN " in text else []
    for edge, following in zip_longest(edges, edges[1:]):
        if edge["begin"]:
            closed = following is not None and not following["begin"]
            if following is None:
                end = len(text)
            elif closed:
                end = following.end()
            else:
                end = following.start()
            if not closed or real_pem(text[edge.start() : end]):
                yield Span(edge.start(), end, "private_key", 2)


def blanked(text: str) -> str:
    """Return the text with blanks for escapes, as long as before."""
    return _ESCAPE.sub(lambda match: " " * len(match[0]), text) if "\\" in text else text


def repeats_of(content: Iterable[str]) -> Callable[[str], list[Span]]:
    """Return a function that finds, as whole words, those secrets that can't be words. They are secrets
    wherever they are repeated.
    """
    secrets = {
        text[span.start : span.end]: span.kind for text in content for span in find_secrets(blanked(text))
    }
    kinds = {
        value: kind
        for value, kind in secrets.items()
        if len(value) > 5 and not value.isalpha() and not value.isdigit()
    }
    values = AhoCorasick(kinds) if kinds else None

    def find(text: str) -> list[Span]:
        hits = values.find_matches_as_indexes(text, overlapping=True) if values else []
        return [
            Span(start, end, kinds[text[start:end]], 1)
            for _, start, end in hits
            if text[start - 1 : start] not in _BEFORE and text[end : end + 1] not in _IN_WORD
        ]

    return find
