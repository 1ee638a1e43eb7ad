"""Tables of the pages that must have each thing, once."""

import re

from tests.docs.pages import ROOT
from tinyexp.observability import epoch_log, mlflow_log, status, step_log, tensorboard_log, wandb_log
from tinyexp.report.run_files import RECORD, REPORT
from tinyexp.report.sections import FILES
from tinyexp.training.predictions import FILES as OF_AN_EVALUATION
from tinyexp.training.unreadable import BAD_IMAGES


def test_the_readme_names_each_page_once():
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("## Pages")[1].split("## ")[0]
    pages = re.findall(r"^\| \[(.+?)\]", table, re.MULTILINE)
    assert sorted(set(pages)) == sorted(pages)
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"} <= {page.rpartition("/")[2] for page in pages}


def test_every_file_of_a_run_folder_is_told_of():
    table = (ROOT / "docs/watching.md").read_text(encoding="utf-8").split("## Files of a run folder")[1].split("## ")[0]
    told = {name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(.+?)/?`", row)}
    written = {*FILES, *OF_AN_EVALUATION, *wandb_log.FILES, mlflow_log.ID_FILE, tensorboard_log.FOLDER, BAD_IMAGES}
    written |= {epoch_log.FILE, step_log.FILE, status.FILE, RECORD, REPORT}
    assert written - told == set()
