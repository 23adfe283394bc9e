"""Formats of keys and tokens that vendors publish: the rules of detect-secrets, and a table of their gaps."""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

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
GITLEAKS, TRUFFLEHOG = "github.com/gitleaks/gitleaks", "github.com/trufflesecurity/trufflehog"


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
