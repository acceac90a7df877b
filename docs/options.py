"""The directive ``cli-options``: the options of a command, from its parser."""

import argparse
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from botorch_bkb.cli.arguments import build_parser


class CliOptions(Directive):
    """Write a definition list of one command: ``.. cli-options:: suggest``."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """Return one list for each group of options."""
        command = find_command(self.arguments[0])
        written: list[nodes.Node] = []
        for group in command._action_groups:
            actions = [
                action
                for action in group._group_actions
                if action.help != argparse.SUPPRESS and action.dest != "help"
            ]
            if not actions:
                continue
            if group.title not in ("positional arguments", "options"):
                text = f"{group.title}:"
                written.append(
                    nodes.paragraph("", nodes.Text(text[:1].upper() + text[1:]))
                )
            written.append(
                nodes.definition_list(
                    "", *(item(command, action) for action in actions)
                )
            )
        return written


def find_command(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command."""
    for action in build_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices[name]
    raise ValueError(f"The command line has no command {name!r}.")


def item(
    command: argparse.ArgumentParser, action: argparse.Action
) -> nodes.definition_list_item:
    """Return an option, its value, and its help."""
    formatter = command._get_formatter()
    value = formatter._metavar_formatter(action, action.dest)(1)[0]
    words = ", ".join(action.option_strings) or value
    if action.option_strings and action.nargs != 0:
        words += f" {value}"
    help_text = formatter._expand_help(action)
    definition = nodes.paragraph("", nodes.Text(help_text[:1].upper() + help_text[1:]))
    return nodes.definition_list_item(
        "",
        nodes.term("", "", nodes.literal("", words)),
        nodes.definition("", definition),
    )


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("cli-options", CliOptions)
