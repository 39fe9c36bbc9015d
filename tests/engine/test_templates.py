"""Templates read the JSON they are given, and nothing else."""

from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.errors import HoldfastError
from holdfast.engine.templates import NESTING_LIMIT, OUTPUT_LIMIT, TEMPLATE_LIMIT, TemplateError, check, paths, render

ORDER = {
    "number": 17,
    "customer": {"name": "Ada", "email": None, "vip": True},
    "items": [{"name": "pen", "price": 1.5}, {"name": "ink", "price": 20}],
    "tags": ["new", "gift"],
    "notes": [],
    "currency": "EUR",
}


def text(template: str, data: Any = ORDER) -> str:
    return render(template, data, html=False)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("", ""),
        ("plain } text }} with { braces", "plain } text }} with { braces"),
        ("{{number}}", "17"),
        ("{{ customer.name }}", "Ada"),
        ("{{customer.vip}}", "true"),
        ("[{{customer.email}}]", "[]"),
        ("{{items.0.name}}, {{items.1.price}}, {{items.0.price}}", "pen, 20, 1.5"),
        ("{{#items}}{{name}};{{/items}}", "pen;ink;"),
        ("{{# items }}{{ name }}{{/ items }}", "penink"),
        ("{{#tags}}<{{.}}>{{/tags}}", "<new><gift>"),
        ("{{#notes}}never{{/notes}}{{^notes}}no notes{{/notes}}", "no notes"),
        ("{{^items}}never{{/items}}", ""),
        ("{{#customer}}{{name}} {{number}}{{/customer}}", "Ada 17"),
        ("{{#customer.vip}}thank you{{/customer.vip}}", "thank you"),
        ("{{#customer.name}}{{.}}{{/customer.name}}", "Ada"),
        ("{{#customer.email}}never{{/customer.email}}{{^customer.email}}none{{/customer.email}}", "none"),
        ("{{#items}}{{#customer}}{{name}}{{/customer}} {{name}} {{currency}};{{/items}}", "Ada pen EUR;Ada ink EUR;"),
    ],
)
def test_a_template_is_filled_from_the_data(template: str, expected: str) -> None:
    assert check(template) == []
    assert text(template) == expected


@pytest.mark.parametrize("value", [None, False, 0, 0.0, "", [], {}])
def test_what_is_empty_leaves_a_section_out(value: object) -> None:
    assert text("{{#x}}yes{{/x}}{{^x}}no{{/x}}", {"x": value}) == "no"


@pytest.mark.parametrize("value", [True, 1, "0", [0], {"a": 1}])
def test_anything_else_enters_it(value: object) -> None:
    assert text("{{#x}}yes{{/x}}{{^x}}no{{/x}}", {"x": value}) == "yes"


def test_a_list_of_lists_is_read_by_index_and_by_dot() -> None:
    assert text("{{#.}}{{#.}}{{.}}{{/.}}|{{0}};{{/.}}", [[1, 2], [3]]) == "12|1;3|3;"


def test_the_innermost_name_wins_and_the_rest_of_a_path_is_followed_from_there() -> None:
    data = {"a": {"b": 1}, "inner": {"a": {"c": 2}}}
    assert text("{{#inner}}{{a.c}}{{/inner}}{{a.b}}", data) == "21"
    with pytest.raises(TemplateError, match=r"'a\.b'"):
        text("{{#inner}}{{a.b}}{{/inner}}", data)


def test_a_tag_of_a_section_alone_on_its_line_takes_the_line_with_it() -> None:
    template = "Items:\r\n  {{#items}}\r\n- {{name}}\r\n  {{/items}}\r\nEnd {{#tags}}\n{{.}}{{/tags}}"
    assert text(template) == "Items:\r\n- pen\r\n- ink\r\nEnd \nnew\ngift"
    assert text("{{#items}}\n{{#tags}}\n{{.}}\n{{/tags}}\n{{/items}}") == "new\ngift\nnew\ngift\n"
    assert text("{{number}} {{#items}}\n.{{/items}}\n") == "17 \n.\n.\n"


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("nothing", "'nothing'"),
        ("customer.nme", r"'customer\.nme'"),
        ("customer.name.first", r"'customer\.name\.first'"),
        ("items.2.name", r"'items\.2\.name'"),
        ("items.-1", r"'items\.-1'"),
        ("items.name", r"'items\.name'"),
        ("items.00", r"'items\.00'"),
        ("customer.email.x", r"'customer\.email\.x'"),
        ("customer.__class__", "__class__"),
        ("tags.append", "append"),
        ("items." + "9" * 5000, "999"),
    ],
)
def test_what_is_missing_is_an_error_that_names_the_path(path: str, named: str) -> None:
    for template in (f"{{{{{path}}}}}", f"{{{{#{path}}}}}x{{{{/{path}}}}}", f"{{{{^{path}}}}}x{{{{/{path}}}}}"):
        assert check(template) == []
        with pytest.raises(TemplateError, match=named) as refused:
            text("first line\n  " + template)
        assert str(refused.value).startswith("line 2, column 3: ")
        assert isinstance(refused.value, HoldfastError) and refused.value.code == "bad_template"


@pytest.mark.parametrize(
    ("value", "words"),
    [([1], "a list"), ({"a": 1}, "an object"), (float("nan"), "JSON"), pytest.param(10**5000, "digits", id="long")],
)
def test_what_is_not_text_or_a_number_cannot_be_written(value: object, words: str) -> None:
    with pytest.raises(TemplateError, match=words):
        text("{{x}}", {"x": value})


@pytest.mark.parametrize(
    ("template", "errors"),
    [
        ("a {{name", ["line 1, column 3: {{ is never closed"]),
        ("a\nb {{#items}}", ["line 2, column 3: {{#items}} is never closed"]),
        ("{{^items}}", ["line 1, column 1: {{^items}} is never closed"]),
        ("x{{/items}}", ["line 1, column 2: {{/items}} closes a section that was never opened"]),
        ("{{#a}}{{/b}}", ["line 1, column 7: {{/b}} stands where {{/a}} is expected"]),
        (
            "{{#a}}{{#b}}{{/a}}{{/b}}",
            ["line 1, column 13: {{/a}} stands where {{/b}}", "line 1, column 19: {{/b}} stands where {{/a}}"],
        ),
        ("{{}}", ["line 1, column 1: {{}} is not a path"]),
        ("{{ a b }}", ["is not a path"]),
        ("{{a..b}}", ["is not a path"]),
        ("{{a.b()}}", ["is not a path"]),
        ("{{a|upper}}", ["is not a path"]),
        ("{{> partial}}", ["is not a path"]),
        ("{{{name}}}", ["no unescaped form"]),
        ("{{&name}}", ["no unescaped form"]),
        ("{{#a}}\n{{b c}}", ["line 1, column 1: {{#a}} is never closed", "line 2, column 1: {{b c}} is not a path"]),
    ],
)
def test_a_bad_template_is_found_before_it_is_used(template: str, errors: list[str]) -> None:
    found = check(template)
    assert len(found) == len(errors)
    for one, expected in zip(found, errors, strict=True):
        assert expected in one
    for use in (paths, text):
        with pytest.raises(TemplateError):
            use(template)


def test_a_template_must_be_text() -> None:
    assert check(17) == ["a template is text, this is int"]


def test_the_variables_of_a_template_are_listed_once_and_in_order() -> None:
    assert paths("{{b}}{{#items}}{{name}}{{.}}{{b}}{{/items}}{{^a.c}}{{/a.c}}") == ["b", "items", "name", ".", "a.c"]


def test_a_template_has_a_size() -> None:
    assert check("x" * TEMPLATE_LIMIT) == []
    assert "limit is 65,536" in check("x" * (TEMPLATE_LIMIT + 1))[0]
    assert "limit is 65,536" in check("é" * (TEMPLATE_LIMIT // 2 + 1))[0]


def test_sections_have_a_depth() -> None:
    def nested(depth: int) -> str:
        return "{{#a}}" * depth + "x" + "{{/a}}" * depth

    assert text(nested(NESTING_LIMIT), {"a": True}) == "x"
    assert check(nested(NESTING_LIMIT + 1)) == ["line 1, column 121: sections are nested deeper than 20"]
    assert len(check("{{#a}}" * 10_000)) == 1


def test_a_rendering_has_a_size() -> None:
    assert len(text("{{#a}}{{b}}{{/a}}", {"a": [0] * 1024, "b": "x" * 1024})) == OUTPUT_LIMIT
    with pytest.raises(TemplateError, match="longer than 1,048,576 bytes"):
        text("{{#a}}{{b}}{{/a}}", {"a": [0] * 1025, "b": "x" * 1024})
    with pytest.raises(TemplateError, match="longer than"):
        text("{{b}}", {"b": "é" * (OUTPUT_LIMIT // 2 + 1)})


def test_a_rendering_that_goes_round_without_writing_is_stopped() -> None:
    with pytest.raises(TemplateError, match="steps"):
        text("{{#a}}" * 20 + "{{/a}}" * 20, {"a": [0] * 1000})
    with pytest.raises(TemplateError, match="steps"):
        text("{{#a}}{{/a}}", {"a": [0] * 1_000_000})


def test_html_escapes_every_value_and_text_none() -> None:
    data = {"x": "<script>alert('1') & \"2\"</script>"}
    assert text("<b>{{x}}</b>", data) == "<b><script>alert('1') & \"2\"</script></b>"
    assert render("<b>{{x}}</b>", data, html=True) == (
        "<b>&lt;script&gt;alert(&#x27;1&#x27;) &amp; &quot;2&quot;&lt;/script&gt;</b>"
    )


class Seen(HTMLParser):
    """The tags and attributes of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[object] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(tag)

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", data))

    def handle_decl(self, decl: str) -> None:
        self.tags.append(("decl", decl))

    def handle_pi(self, data: str) -> None:
        self.tags.append(("pi", data))

    def unknown_decl(self, data: str) -> None:
        self.tags.append(("unknown", data))

    def handle_data(self, data: str) -> None:
        self.text += data


AWKWARD = [
    "<",
    ">",
    "&",
    '"',
    "'",
    "</p>",
    "<script>",
    "<!--",
    "-->",
    "<![CDATA[",
    "<?x?>",
    "{{x}}",
    "}}",
    "=",
    "`",
    " ",
]
hostile = st.lists(st.sampled_from(AWKWARD) | st.text(st.characters(exclude_categories=["Cs", "Cc"]))).map("".join)


@given(hostile)
def test_no_data_brings_a_tag_into_a_page(value: str) -> None:
    template = """<p title="{{x}}" class='{{x}}'>{{x}}{{#list}}<i>{{.}}</i>{{/list}}</p>"""
    seen = Seen(render(template, {"x": value, "list": [value]}, html=True))
    assert seen.tags == [("p", [("title", value), ("class", value)]), ("i", []), "i", "p"]
    assert seen.text == value * 2


@given(st.text("{}#^/. abc\n&!", max_size=60), st.dictionaries(st.sampled_from("abc"), st.text("{}abc"), max_size=3))
def test_any_text_is_a_template_or_refused_with_words(template: str, data: dict[str, str]) -> None:
    errors = check(template)
    try:
        rendered = text(template, data)
    except TemplateError as error:
        assert errors == [] or errors[0] in str(error)
    else:
        assert errors == [] and isinstance(rendered, str)


@given(st.text())
def test_data_is_not_a_template(value: str) -> None:
    assert text("{{a}}", {"a": value}) == value
