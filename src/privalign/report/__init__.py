"""The report: studies in, figures (PNG, SVG), tables (Markdown, CSV, LaTeX) and one page out; the same studies give the same bytes.

`plans` says which figures a kind of study gets, `lines` turns rows into lines, `figures` draws them in the one `style`,
`tables` and `page` write what stands beside them, `build` joins all into files.
"""
