"""The text of `structsparse train --help`: choices and options, read from the yaml files and their comments."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from structsparse.base.configuration import configuration_folder

HEADER = """\
usage: structsparse train [KEY=VALUE ...] [--config-dir DIR] [--multirun] [--cfg job]

Train a structured predictor under a group-sparsity penalty. Results are written to runs/TASK-DATA-REG/TIME.

  structsparse train task=ner reg=group_lasso                 on a planted corpus, nothing to download
  structsparse train task=chunking data=conll2000 reg=l1      on a known corpus
  structsparse train data=files data.train=a.txt data.test=b.txt reg.strength=0.05
  structsparse train ckpt_path=last                           continue an interrupted run of the same options

  --config-dir DIR   a folder with yaml files of your own, laid out like conf/
  --multirun, -m     one run for each combination of values, as in seed=0,1,2 reg=l1,group_lasso
  --cfg job          print the configuration of a run instead of running it

  structsparse train --help reg                  lists the choices of a group, here reg, one per line
  structsparse train --help reg=group_lasso      prints the options of a choice
"""
BASE = "_"  # the names of base files begin with this; base files are included by other yaml files


def help_text(arguments: Sequence[str], conf: Path | None = None) -> str:
    """Train help: the help text for the given arguments of `structsparse train`.

    An argument such as `reg` lists the choices of a config group. An argument such as `reg=l1` prints the options of a
    choice. Otherwise the text is an overview."""
    conf = conf or configuration_folder()
    groups = [argument for argument in arguments if (conf / argument).is_dir()]
    chosen = [argument.split("=") for argument in arguments if re.fullmatch(r"[\w/]+=\w+", argument)]
    files = [conf / group / f"{name}.yaml" for group, name in chosen]
    parts = [_choices(conf / group) for group in groups]
    parts += [_options(file, conf) for file in files if file.exists()]
    return "\n".join(parts or [HEADER, _overview(conf)])


def _overview(conf: Path) -> str:
    """Train help: an overview with the choices of all config groups, and the options of every run."""
    groups = sorted(path for path in conf.iterdir() if path.is_dir())
    width = max(len(group.name) for group in groups) + 2
    lines = ["Choices:"]
    for group in groups:
        names = " ".join(path.stem for path in _files(group))
        indent = " " * (width + 2)
        lines += textwrap.wrap(names, 110, initial_indent=f"  {group.name:<{width}}", subsequent_indent=indent)
    text = (conf / "config.yaml").read_text(encoding="utf-8")
    options = text[text.index("\nseed:") : text.index("\nhydra:")].strip()
    return "\n".join([*lines, "", "Options of every run:", textwrap.indent(options, "  "), ""])


def _choices(group: Path) -> str:
    """Train help: the choices of a config group, one per line, each with the comment at the head of its file."""
    files = list(_files(group))
    width = max(len(path.stem) for path in files)
    return "\n".join(f"{group.name}={path.stem:<{width}}  {_comment(path)}".rstrip() for path in files) + "\n"


def _options(file: Path, conf: Path) -> str:
    """Train help: the yaml text of a choice, after the texts of the base files that the choice includes."""
    bases = [_options(base, conf) for base in _bases(file)]
    text = file.read_text(encoding="utf-8").replace("# @package _global_\n", "").rstrip()
    return "\n".join([*bases, f"# {file.relative_to(conf)}", text, ""])


def _bases(file: Path) -> Iterator[Path]:
    """Train help: the base files (named _...) that a yaml file includes from its folder."""
    names = re.findall(rf"(?<![\w/@])({BASE}\w+)", file.read_text(encoding="utf-8"))
    for name in dict.fromkeys(names):
        if (base := file.with_name(f"{name}.yaml")).exists():
            yield base


def _files(group: Path) -> Iterator[Path]:
    """Train help: the yaml files of a config group, one for each choice, without base files (named _...)."""
    return (path for path in sorted(group.glob("*.yaml")) if not path.stem.startswith(BASE))


def _comment(path: Path) -> str:
    """Train help: the comment at the head of a yaml file, in one line."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("# @package")]
    return " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines))
