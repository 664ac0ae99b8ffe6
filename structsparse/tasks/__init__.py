"""The tasks of this package, with one folder per task: tagging, parsing, language models, text classification.

Files with the same name have the same role in every folder. Only the module `registry` refers to all tasks."""
