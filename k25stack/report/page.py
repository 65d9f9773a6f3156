"""A document as one self-contained HTML page: no script, no address, everything escaped, dark mode by CSS variables."""

from __future__ import annotations

from html import escape

from k25stack.report.blocks import Block, Bullets, Commands, Document, Table, Text

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1d2329; --quiet: #5b6670; --line: #d5dbe1; --code: #f3f5f7; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14181c; --ink: #e3e7eb; --quiet: #98a3ad; --line: #333c45; --code: #1f252b; }
}
body { background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1, h2 { line-height: 1.2; }
h2 { border-bottom: 1px solid var(--line); margin-top: 2.2rem; padding-bottom: .3rem; }
.lead, figcaption { color: var(--quiet); }
figure { margin: 1rem 0; overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }
pre { background: var(--code); border-radius: 4px; overflow-x: auto; padding: .6rem .8rem; }
"""  # noqa: E501


def render(document: Document) -> str:
    body = [f"<h1>{escape(document.title)}</h1>", f'<p class="lead">{escape(document.lead)}</p>']
    for section in document.sections:
        body.append(f"<section>\n<h2>{escape(section.title)}</h2>")
        body += [_block(block) for block in section.blocks]
        body.append("</section>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(document.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    if isinstance(block, Text):
        return f"<p>{escape(block.text)}</p>"
    if isinstance(block, Bullets):
        return "<ul>\n" + "\n".join(f"<li>{escape(item)}</li>" for item in block.items) + "\n</ul>"
    if isinstance(block, Commands):
        return "\n".join(f"<p>{escape(why)}:</p>\n<pre><code>{escape(what)}</code></pre>" for what, why in block.items)
    return _table(block)


def _table(block: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in block.header)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in block.rows)
    caption = f"<figcaption>{escape(block.caption)}</figcaption>\n" if block.caption else ""
    return f"<figure>\n<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n{caption}</figure>"
