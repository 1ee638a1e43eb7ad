"""The markup of a run's page, for jinja2. `report.page.Page` says what it shows."""

TEMPLATE = """
{%- macro table(each) %}
<div class="scroll" tabindex="0" role="region" aria-label="{{ each.caption }}">
<table>
<caption>{{ each.caption }}</caption>
<thead><tr>
{% for column in each.columns %}
<th scope="col"{% if loop.index0 in each.numbers %} class="number"{% endif %}>{{ column }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in each.rows %}
<tr>{% for value in row %}<td{% if loop.index0 in each.numbers %} class="number"{% endif %}>{{ value }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table>
</div>
{%- endmacro %}

{%- macro chart(each) %}
<figure class="chart" data-values="{{ each.values }}">
<figcaption class="title">{{ each.title }}{% if each.unit %} <span class="soft">({{ each.unit }})</span>{% endif %}</figcaption>
<svg viewBox="0 0 {{ frame.width }} {{ frame.height }}" role="img" tabindex="0" aria-label="{{ each.described }}">
{% for y, text in each.y_ticks %}
<line class="grid" x1="{{ frame.left }}" x2="{{ frame.right }}" y1="{{ y }}" y2="{{ y }}"/>
<text x="{{ frame.left - 6 }}" y="{{ y + 4 }}" text-anchor="end">{{ text }}</text>
{% endfor %}
<line class="axis" x1="{{ frame.left }}" x2="{{ frame.right }}" y1="{{ frame.bottom }}" y2="{{ frame.bottom }}"/>
{% for x, text in each.x_ticks %}
<text x="{{ x }}" y="{{ frame.bottom + 15 }}" text-anchor="middle">{{ text }}</text>
{% endfor %}
<text x="{{ (frame.left + frame.right) / 2 }}" y="{{ frame.height - 3 }}" text-anchor="middle">{{ each.axis }}</text>
<line class="cursor" x1="{{ frame.left }}" x2="{{ frame.left }}" y1="{{ frame.top }}" y2="{{ frame.bottom }}"/>
{% for line in each.lines %}
<path class="c{{ line.colour }}" d="{{ line.path }}"/>
{% for x, y in line.dots %}
<circle class="c{{ line.colour }}" cx="{{ x }}" cy="{{ y }}" r="2.5"/>
{% endfor %}
{% endfor %}
</svg>
<ul class="legend">
{% for line in each.lines %}
<li><svg viewBox="0 0 18 8" aria-hidden="true"><path class="c{{ line.colour }}" d="M1 4L17 4"/></svg>{{ line.label }}</li>
{% endfor %}
</ul>
<output></output>
</figure>
{%- endmacro %}

{%- macro sample(each) %}
<article class="sample">
<div class="pictures">
{% for picture in each.pictures %}
<figure><img src="{{ picture.source }}" alt="{{ picture.described }}"><figcaption>{{ picture.caption }}</figcaption></figure>
{% endfor %}
</div>
<h3>{{ each.true_class }} {% if each.is_right %}<span class="right">✓ recognised</span>{% else -%}
<span class="wrong">✗ taken for {{ each.answers[0][0] }}</span>{% endif %}</h3>
<p class="soft">{{ each.file }}</p>
<dl class="answers">
{% for name, probability in each.answers %}
<dt>{{ name }}</dt>
<dd><svg viewBox="0 0 100 9" preserveAspectRatio="none" aria-hidden="true"><rect class="rail" width="100" height="9"/>
<rect class="bar" width="{{ 100 * probability }}" height="9"/></svg></dd>
<dd>{{ "%.1f" | format(100 * probability) }} %</dd>
{% endfor %}
</dl>
</article>
{%- endmacro -%}

<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ page.title }}</title>
<link rel="icon" href="data:,">
<style>{{ style | safe }}</style>
</head>
<body>
<main>
<header>
<h1>{{ page.title }}</h1>
<p><span class="status {{ page.status }}">{{ page.status }}</span>{{ page.status_text }}</p>
<dl class="tiles">
{% for tile in page.tiles %}
<div><dt>{{ tile.name }}</dt><dd>{{ tile.value }}{% if tile.note %}<span class="note">{{ tile.note }}</span>{% endif %}</dd></div>
{% endfor %}
</dl>
</header>
{% for section in page.sections %}
<section>
<h2>{{ section.title }}</h2>
{% for paragraph in section.text %}
<p>{{ paragraph }}</p>
{% endfor %}
{% if section.lines %}
<ul class="lines">
{% for line in section.lines %}
<li>{{ line }}</li>
{% endfor %}
</ul>
{% endif %}
{% if section.facts %}
<dl class="facts">
{% for name, value in section.facts.items() %}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
</dl>
{% endif %}
{% if section.code %}
<pre>{{ section.code }}</pre>
{% endif %}
{% if section.charts %}
<div class="charts">
{% for each in section.charts %}{{ chart(each) }}{% endfor %}

</div>
{% endif %}
{% if section.samples %}
<div class="samples">
{% for each in section.samples %}{{ sample(each) }}{% endfor %}

</div>
{% endif %}
{% if section.tables or section.pictures %}
<div class="tables">
{% for picture in section.pictures %}
<figure class="big{% if picture.wide %} wide{% endif %}"><img src="{{ picture.source }}" alt="{{ picture.described }}">
<figcaption>{{ picture.caption }}</figcaption></figure>
{% endfor %}
{% for each in section.tables if not each.folded %}{{ table(each) }}{% endfor %}

</div>
{% endif %}
{% for each in section.tables if each.folded %}
<details><summary>{{ each.caption }}</summary>{{ table(each) }}</details>
{% endfor %}
</section>
{% endfor %}
<footer>{{ page.written }}</footer>
</main>
<script>{{ script | safe }}</script>
</body>
</html>
"""
