"""`draftgate settings`: which are in force, and where each comes from."""

import os
from dataclasses import asdict

from app.cli.common import errors_as_exit_codes
from app.cli.options import AsJson
from app.cli.show import print_json, print_table
from app.in_force import in_force
from app.settings import load


def settings(as_json: AsJson = False) -> None:
    """Show the settings as a process that starts here would have them; never a secret."""
    with errors_as_exit_codes():
        found = [asdict(setting) for setting in in_force(load(), os.environ)]
        if as_json:
            print_json(found)
        else:
            print_table(found, ("variable", "value", "origin"))
