"""A name that cannot be the name of a project is refused, with the reason and with a name that is
allowed.
"""

import pytest

from ergo_py.shell.scaffold.project_name import BadNameError, ProjectName


@pytest.mark.parametrize(
    "text, package",
    [("shop", "shop"), ("my_shop", "my_shop"), ("my-shop-2", "my_shop_2"), ("x", "x")],
)
def test_a_name_has_two_spellings(text: str, package: str) -> None:
    assert ProjectName.of(text) == ProjectName(text, package)


@pytest.mark.parametrize(
    "text, complaint",
    [
        (
            "",
            "NAME is ''; allowed are small letters, digits, and single - or _ between them, "
            "beginning with a letter; write `ergo new my_shop`",
        ),
        ("My Shop", "beginning with a letter; write `ergo new my_shop`"),
        ("2shop", "beginning with a letter; write `ergo new shop`"),
        ("-shop", "beginning with a letter; write `ergo new shop`"),
        ("shop__2", "beginning with a letter; write `ergo new shop_2`"),
        ("Import", "beginning with a letter; write `ergo new my_shop`"),
        ("größe", "beginning with a letter; write `ergo new gr_e`"),
        (
            "a/b",
            "NAME is 'a/b', a path; write the last part only, in the folder that shall hold "
            "the project",
        ),
        ("..", "NAME is '..', a path"),
        ("class", "a keyword of Python, which `import` cannot name; write `ergo new class_app`"),
        (
            "json",
            "a module of Python's standard library, which the project would hide; write "
            "`ergo new json_app`",
        ),
        ("test", "a module of Python's standard library, which the project would hide"),
        (
            "trio",
            "NAME is 'trio', a module or folder that the project itself needs; write "
            "`ergo new trio_app`",
        ),
        ("ergo-py", "NAME is 'ergo-py', a module or folder that the project itself needs"),
        ("attr", "a module or folder that the project itself needs"),
        ("sniffio", "a module or folder that the project itself needs"),
        ("dist", "a module or folder that the project itself needs"),
        ("x" * 32, "NAME has 32 characters; allowed are 31"),
    ],
)
def test_a_name_that_is_not_allowed_is_refused_with_advice(text: str, complaint: str) -> None:
    with pytest.raises(BadNameError) as caught:
        ProjectName.of(text)

    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "text", ["My Shop", "2shop", "class", "json", "Test", "größe", "", "Json", "A" * 99]
)
def test_the_advised_name_is_allowed(text: str) -> None:
    with pytest.raises(BadNameError) as caught:
        ProjectName.of(text)

    advised = str(caught.value).partition("`ergo new ")[2].rstrip("`")
    assert ProjectName.of(advised).project == advised
