"""From argv to an exit code; knows no command."""
