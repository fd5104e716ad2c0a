"""Help on the `key=value` settings of a command that composes cells: groups, experiments and settings.

Reads the schema and the names of the files in conf/; imports neither Hydra nor torch.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from harness.cli.arguments import shown
from harness.cli.command_line import help_width
from harness.settings.schema import CONF, Setting, all_settings, group_options, sections

OVERRIDES = "[experiment=NAME] [group=OPTION ..] [setting=VALUE ..]"
"""Arguments of a command that composes cells, for its usage."""
_MAX_NAME = 36
"""A longer name stands on a line of its own."""


def settings_help(groups: Iterable[str], takes: Callable[[str], bool] = lambda key: True) -> str:
    """Groups with their options and settings with default and meaning, wrapped to the terminal.

    Args:
        groups: names of the groups and sections to show, and `""` for the settings at the root.
        takes: whether the command takes a setting; those that it refuses are left out.
    """
    asked = list(groups)
    chosen = _chosen_options()
    lines = ["groups (group=option; * is taken unless another is given):"]
    options = {group: names for group, names in group_options().items() if group in asked and len(names) > 1}
    lines += _columns(
        [(group, ", ".join(f"{name}*" if name == chosen.get(group) else name for name in _in_order(group, names)))
         for group, names in options.items()]
    )  # fmt: skip
    if "experiment" in asked:
        lines += ["", "experiments:", *_columns([(name, _title(name)) for name in group_options()["experiment"]])]
    meanings = sections() | {"": "Of the whole run."}
    for section in asked:
        listed = [item for item in all_settings().values() if item.section == section and takes(item.key)]
        if listed:
            lines += ["", f"{section} settings (setting=value). {meanings[section]}".lstrip(), *_described(listed)]
    return "\n".join(lines)


def _in_order(group: str, names: Sequence[str]) -> list[str]:
    """Options in the order of the schema's choices where it has them, else by name."""
    settings = all_settings()
    choices = [
        choice for key in (f"{group}.kind", f"{group}.method") if key in settings for choice in settings[key].choices
    ]
    return sorted(names, key=lambda name: (choices.index(name) if name in choices else len(choices), name))


def _chosen_options() -> dict[str, str]:
    """The option of each group that conf/config.yaml takes."""
    defaults: list[Any] = _read("config")["defaults"]
    return {group: option for item in defaults if isinstance(item, dict) for group, option in item.items()}


def _title(experiment: str) -> str:
    return str(_read(f"experiment/{experiment}").get("title", ""))


def _read(name: str) -> dict[str, Any]:
    import yaml

    content: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    return content


def _described(settings: Iterable[Setting]) -> list[str]:
    return _columns([(f"{item.key}={shown(item.default)}", _meaning(item)) for item in settings])


def _meaning(setting: Setting) -> str:
    choices = f" One of {', '.join(setting.choices)}." if setting.choices else ""
    return f"{setting.doc}{choices}"


def _columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = help_width()
    indent = 2 + max((len(name) for name, _ in rows if len(name) <= _MAX_NAME), default=0) + 2
    lines: list[str] = []
    for name, text in rows:
        start, margin = f"  {name}".ljust(indent), " " * indent
        if len(name) > _MAX_NAME:
            lines.append(start)
            start = margin
        lines += textwrap.wrap(text, width, initial_indent=start, subsequent_indent=margin, break_on_hyphens=False) or [
            start
        ]
    return lines
