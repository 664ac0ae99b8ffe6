"""Subcommands that use trained models, such as predict and evaluate, assembled from the declarations of the tasks."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

from structsparse.base.commands import Argument, ModelCommands, Subcommand
from structsparse.base.console import check_output
from structsparse.base.errors import UserError
from structsparse.cli import evaluate, predict
from structsparse.tasks import registry

SHARED = {"predict": predict, "evaluate": evaluate}  # modules of the subcommands that all tasks share
Parts = Mapping[str, Subcommand]  # for one subcommand: {name of the task: declaration by the task}


def add_subcommands(adder) -> None:
    """Add a parser to argparse's subparsers for every subcommand that uses trained models."""
    tasks = dict(registry.commands())
    for name, parts in _by_name(tasks).items():
        purposes = dict.fromkeys(part.purpose for part in parts.values())
        purpose = SHARED[name].PURPOSE if name in SHARED else "; ".join(purposes)
        examples = [f"  {line}" for part in parts.values() for line in part.examples]
        parser = adder.add_parser(
            name,
            help=purpose,
            description="\n\n".join(part.description for part in parts.values()),
            epilog="\n".join(["examples:", *examples]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(command=name)
        parser.add_argument(
            "model",
            metavar="MODEL",
            type=Path,
            help="folder of a model or run, or a file of word vectors",
        )
        for argument in SHARED[name].ARGUMENTS if name in SHARED else ():
            parser.add_argument(*argument.names, **argument.settings)
        _add_arguments(parser, parts, tasks)


def run(options: argparse.Namespace) -> None:
    """Run a subcommand on a trained model, with the function that the task of the model declares."""
    task, tasks = registry.task_of(options.model), dict(registry.commands())
    parts = _by_name(tasks)[options.command]
    model = f"{options.model} is {tasks[task].singular if task in tasks else f'a model of task {task}'}"
    if task not in parts:
        raise UserError(f"{model}; `structsparse {options.command}` is for {_plurals(parts, tasks)}")
    for owners in _owners(parts).values():
        argument = next(iter(owners.values()))
        value = vars(options)[argument.key]
        if task not in owners and value and value != argument.settings.get("default"):
            raise UserError(f"{argument.shown} is for {_plurals(owners, tasks)}; {model}")
    for argument in parts[task].arguments:
        choices, value = argument.settings.get("choices"), vars(options)[argument.key]
        if choices is not None and value is not None and value not in choices:
            raise UserError(f"{argument.shown} {value}: {model}, choose {', '.join(choices)}")
    if "file" in vars(options) and options.file is None and not parts[task].own_data:
        raise UserError(f"FILE is missing, with data to {options.command} the model on; {model}")
    check_output(vars(options).get("output"))
    parts[task].run(options, registry.load(options.model))


def _by_name(tasks: Mapping[str, ModelCommands]) -> dict[str, dict[str, Subcommand]]:
    """Collect the subcommands for trained models: {name of the subcommand: {task: declaration by the task}}."""
    names = {name: {} for name in SHARED}
    for task, commands in tasks.items():
        for part in commands.subcommands:
            names.setdefault(part.name, {})[task] = part
    return names


def _owners(parts: Parts) -> dict[str, dict[str, Argument]]:
    """Collect which tasks declare each argument of a subcommand for models: {argument: {task: declaration}}."""
    owners = {}
    for task, part in parts.items():
        for argument in part.arguments:
            owners.setdefault(argument.key, {})[task] = argument
    return owners


def _add_arguments(parser: argparse.ArgumentParser, parts: Parts, tasks: Mapping[str, ModelCommands]) -> None:
    """Add to the parser of a subcommand for models the arguments that the tasks declare.

    Arguments that not all tasks declare are listed in a section such as "for taggers and parsers only"."""
    groups = {(*parts,): parser}
    for owners in _owners(parts).values():
        group = groups.get((*owners,)) or parser.add_argument_group(f"for {_plurals(owners, tasks)} only")
        groups[(*owners,)] = group
        first = next(iter(owners.values()))
        helps = dict.fromkeys(argument.settings["help"] for argument in owners.values())
        settings = {**first.settings, "help": "; ".join(helps)}
        if "choices" in settings:  # `run` refuses those of other tasks
            settings["choices"] = [*dict.fromkeys(c for a in owners.values() for c in a.settings["choices"])]
        group.add_argument(*first.names, **settings)


def _plurals(names: Iterable[str], tasks: Mapping[str, ModelCommands]) -> str:
    """The plural nouns by which a message names the models of some tasks, such as "taggers and parsers"."""
    return " and ".join(tasks[name].plural for name in names)
