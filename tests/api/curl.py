"""As much of curl as the README uses, for machines that have none: -s, -N, -X, -H, -d and a URL."""

from __future__ import annotations

import sys

import httpx


def main(words: list[str]) -> None:
    method, headers, body, url = "", {}, None, ""
    rest = iter(words)
    for word in rest:
        if word == "-X":
            method = next(rest)
        elif word == "-H":
            name, _, value = next(rest).partition(": ")
            headers[name] = value
        elif word == "-d":
            body = next(rest)
        elif word in ("-s", "-N"):
            continue
        else:
            assert not word.startswith("-"), f"curl {word} is not known here"
            url = word
    answer = httpx.request(
        method or ("GET" if body is None else "POST"), url, headers=headers, content=body, timeout=60
    )
    sys.stdout.write(answer.text)


if __name__ == "__main__":
    main(sys.argv[1:])
