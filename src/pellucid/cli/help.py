"""The help of a command, its flags under the headings of their panels (Options, Sampling, Engine)."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class GroupedCommand(TyperCommand):
    """typer shows panels with rich only, whose help takes longer to draw and cuts long flag names off."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or kind, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)
