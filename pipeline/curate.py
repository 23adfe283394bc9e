"""Turn whatever lies in data/raw into a clean, deduplicated, leak-free, redacted training set, and account for every line.

Reads `data/raw/**`, `data/guard/**` (names to redact, texts to keep out of training), `models/base.json` and `models/base/`
(the tokenizer's control tokens, the template). Writes `data/final/{train,val,test}.jsonl`, `data/rejects.jsonl`,
`data/changes.jsonl`, `data/clusters.jsonl`, `reports/data.json` and `reports/data.html`.

    python -m pipeline curate
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pipeline.curation.account import Account, check_account, refuse_empty
from pipeline.curation.clean import Block, Cleaned, Cleaner, blocks
from pipeline.curation.containers import raw_files, raw_lines, refusal
from pipeline.curation.decide import Decisions, decide
from pipeline.curation.features import Comparison, row_features
from pipeline.curation.rows_table import RowsTable
from pipeline.curation.samples import samples
from pipeline.curation.spool import Spool
from pipeline.curation.splits import SPLITS
from pipeline.curation.workers import Workers, cores, workers
from pipeline.errors import DataError
from pipeline.params import Curate, Params
from pipeline.progress import progress
from pipeline.publish import need_disk, publishing, remove, write_json
from pipeline.reporting.data_page import render_data_page
