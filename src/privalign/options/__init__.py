"""One description of a setting: from it come how a value is read, its default, the option of the command line, the key of a file."""

from privalign.options.described import Option, described, missing, part, read, required
from privalign.options.kinds import Kind, choice, flag, real, several, text, whole

__all__ = ["Kind", "Option", "choice", "described", "flag", "missing", "part", "read", "real", "required", "several", "text", "whole"]
