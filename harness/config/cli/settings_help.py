"""Help on the `key=value` settings of a command that composes cells: groups, experiments and settings.

Reads the schema and the names of the files in conf/; imports neither Hydra nor torch.
"""

from __future__ import annotations

from argparse import Action
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from harness.config.cli.arguments import shown
from harness.config.cli.command_line import HelpFormatter
from harness.config.run import RUN_UNIONS
from harness.config.schema import CONF, Setting, all_settings, group_options, sections

OVERRIDES = "[experiment=NAME] [group=OPTION ..] [setting=VALUE ..]"
"""Arguments of a command that composes cells, for its usage."""


def settings_help(
    groups: Iterable[str], takes: Callable[[str], bool] = lambda key: True, defaults: Mapping[str, str] | None = None
) -> str:
    """Groups with their options and settings with default and meaning, wrapped to the terminal.

    Args:
        groups: names of the groups and sections to show, and `""` for the settings at the root.
        takes: whether the command takes a setting; those that it refuses are left out.
        defaults: options that the command takes where conf/config.yaml takes others, by group.
    """
    asked, chosen = list(groups), _chosen_options() | dict(defaults or {})
    options = {group: names for group, names in group_options().items() if group in asked and len(names) > 1}
    rows = [
        (group, ", ".join(f"{name}*" if name == chosen.get(group) else name for name in _in_order(group, names)))
        for group, names in options.items()
    ]
    texts = [_section("groups (group=option; * is taken unless another is given)", rows)]
    if "experiment" in asked:
        titles = [(name, _read(f"experiment/{name}").get("title", "")) for name in group_options()["experiment"]]
        texts.append(_section("experiments", titles))
    meanings = sections() | {"": "Of the whole run."}
    for section in asked:
        listed = [item for item in all_settings().values() if item.section == section and takes(item.key)]
        if listed:
            heading = f"{section} settings (setting=value). {meanings[section]}".strip().rstrip(".")
            texts.append(_section(heading, [(f"{item.key}={shown(item.default)}", _meaning(item)) for item in listed]))
    return "\n".join(texts).rstrip()


def _section(heading: str, rows: Iterable[tuple[str, str]]) -> str:
    formatter = HelpFormatter("")
    formatter.start_section(heading)
    for name, text in rows:
        formatter.add_argument(Action([name], "", nargs=0, help=text.replace("%", "%%") or None))
    formatter.end_section()
    return formatter.format_help()


def _in_order(group: str, names: Sequence[str]) -> list[str]:
    """Options in the order of the schema's choices where it has them, else by name."""
    choices = RUN_UNIONS[group].names if group in RUN_UNIONS else ()
    return sorted(names, key=lambda name: (choices.index(name) if name in choices else len(choices), name))


def _meaning(setting: Setting) -> str:
    choices = f" One of {', '.join(setting.choices)}." if setting.choices else ""
    return f"{_members(setting)}{setting.doc}{choices}"


def _members(setting: Setting) -> str:
    """Which members of a union have a setting; nothing where all have it."""
    if not setting.members:
        return ""
    others = [name for name in RUN_UNIONS[setting.section].names if name not in setting.members]
    if not others:
        return ""
    few = len(others) < len(setting.members)
    return f"all but {', '.join(others)}: " if few else f"{', '.join(setting.members)}: "


def _chosen_options() -> dict[str, str]:
    """The option of each group that conf/config.yaml takes."""
    return {
        group: option
        for item in _read("config")["defaults"]
        if isinstance(item, dict)
        for group, option in item.items()
    }


def _read(name: str) -> dict[str, Any]:
    import yaml

    content: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    return content
