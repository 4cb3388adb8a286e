"""``python -m training.run FOLDER`` builds the tokenizer, trains and exports; it resumes what is
there.

With ``--from DIRECTORY`` a new run begins with the weights and the tokenizer of an exported model.
"""

import argparse
import logging
import os
import shutil
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from training import tokenizer as tokenizers
from training.train import DEFAULT_PLAN, Plan, Trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the run keeps its plan and checkpoint")
    parser.add_argument("--plan", type=Path, default=DEFAULT_PLAN)
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="DIRECTORY",
        help="begin with the weights and the tokenizer of this exported model",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    torch.set_num_threads(options.threads)
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "tokenizer.json"
    if not path.exists() and options.source is not None:
        shutil.copyfile(options.source / "tokenizer.json", path)
    elif not path.exists():
        tokenizers.build().save(str(path))
    trainer = Trainer(Plan.read(options.plan), options.folder)
    if not trainer.resume() and options.source is not None:
        trainer.begin_with(options.source)
    trainer.run()


if __name__ == "__main__":
    main()
