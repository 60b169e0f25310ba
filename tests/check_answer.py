#!/usr/bin/env python3
"""Compares what a job wrote with the expected answer of a dataset.

usage: check_answer.py ANSWER_DIR --joined GLOB [--delay GLOB] [--dead GLOB] [--names ONE,TWO,...] [--keys-only]

ANSWER_DIR  folder with answer.json, joined.jsonl and delayed.jsonl; the dataset is the folder above it
--joined    files with joined documents, one a line      --delay  files with delay documents
--dead      files with dead letters: compared with the bad lines of the dataset, by topic and reason
--names     the members that hold the sides in the output, where they are not the topics
--keys-only does not look for the bytes of the input in the output (saves memory on large sets)

Needs nothing but Python 3.9. Checked: every key once, right sides and key fields, a version that may be there, the bytes
of the value as they were in the input, order and names of members, the error text, `late` if and only if a delay came
first. Ends with CHECK OK (exit 0) or CHECK FAILED (exit 1).
"""
import argparse
import base64
import collections
import glob
import json
import os
import re
import sys

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("answer")
parser.add_argument("--joined", required=True)
parser.add_argument("--delay")
parser.add_argument("--dead")
parser.add_argument("--names")
parser.add_argument("--keys-only", action="store_true")
args = parser.parse_args()

with open(os.path.join(args.answer, "answer.json"), encoding="utf-8") as file:
    answer = json.load(file)
sides = answer["question"]["sides"]
names = args.names.split(",") if args.names else [side["topic"] for side in sides]
if len(names) != len(sides):
    parser.error(f"--names has {len(names)} names for {len(sides)} sides")
dataset = os.path.dirname(os.path.abspath(args.answer))

problems = []
failures = 0


def fail(text):
    global failures
    failures += 1
    if len(problems) < 10:
        problems.append(text)


def lines(pattern):
    """The non-empty lines of all files of a pattern, as bytes. A pattern without files is an empty output."""
    for path in sorted(glob.glob(pattern, recursive=True)):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                for line in file:
                    line = line.rstrip(b"\r\n")
                    if line:
                        yield line


def input_lines(topic):
    for path in sorted(glob.glob(os.path.join(glob.escape(dataset), topic + "*.jsonl"))):
        if re.fullmatch(re.escape(topic) + r"(-p\d+)?\.jsonl", os.path.basename(path)):
            yield from lines(glob.escape(path))


def at(value, path):
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def load_expected(name):
    expected = {}
    for line in lines(glob.escape(os.path.join(args.answer, name))):
        entry = json.loads(line)
        expected[json.dumps(entry["fields"])] = entry
    return expected


def read_document(line, kind):
    """The document, its identity, and by side the version or None; or None if it is not even a document."""
    try:
        document = json.loads(line)
        present = [name in document for name in names]
        fields = {
            json.dumps([at(document[name], path) for path in side["keys"]])
            for name, side, here in zip(names, sides, present)
            if here
        }
        versions = [
            at(document[name], side["version"]) if here else None for name, side, here in zip(names, sides, present)
        ]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        fail(f"{kind} document {line[:120]!r}: {type(error).__name__} {error}")
        return None
    if len(fields) != 1:
        fail(f"{kind} document {line[:120]!r}: its sides have the keys {sorted(fields)}")
        return None
    return document, fields.pop(), versions


def check_values(line, key, versions):
    for side, version in enumerate(versions):
        if version is not None and not args.keys_only:
            value = values[side].get(version)
            if value is None or value not in line:
                fail(f"{key} {names[side]} version {version}: its value is not that of the input, byte for byte")


values = [{} for _ in sides]
if not args.keys_only:
    for held, side in zip(values, sides):
        for line in input_lines(side["topic"]):
            try:
                held[at(json.loads(line), side["version"])] = line
            except (ValueError, KeyError, IndexError, TypeError):
                pass  # a bad line: it is in no document

expected_joined = load_expected("joined.jsonl")
expected_delayed = load_expected("delayed.jsonl")

late = set()
joined = collections.Counter()
for line in lines(args.joined):
    read = read_document(line, "joined")
    if read is None:
        continue
    document, key, versions = read
    joined[key] += 1
    wanted = expected_joined.get(key)
    if wanted is None:
        fail(f"{key} is joined, and should not be")
        continue
    if document.get("key") != wanted["key"]:
        fail(f"{key} is printed as {document.get('key')!r}, not {wanted['key']!r}")
    members = ["key", *names] + (["late"] if "late" in document else [])
    if list(document) != members or document.get("late", True) is not True:
        fail(f"{key} joined: members {list(document)}, not {members}")
    if "late" in document:
        late.add(key)
        if not wanted.get("maybe_late"):
            fail(f"{key} is marked late, and was in time")
    for name, version, allowed in zip(names, versions, wanted["versions"]):
        if version not in allowed:
            fail(f"{key} {name} version {version}, not one of {allowed}")
    check_values(line, key, versions)

delayed = collections.Counter()
for line in lines(args.delay) if args.delay else ():
    read = read_document(line, "delay")
    if read is None:
        continue
    document, key, versions = read
    delayed[key] += 1
    wanted = expected_delayed.get(key) or expected_joined.get(key)
    if wanted is None or ("missing" not in wanted and not wanted.get("maybe_late")):
        fail(f"{key} is delayed, and should not be")
        continue
    missing = [name for name, version in zip(names, versions) if version is None]
    if "missing" in wanted:
        should = [name for name, side in zip(names, sides) if side["topic"] in wanted["missing"]]
        if missing != should:
            fail(f"{key} delayed: missing {missing}, not {should}")
    if document.get("error") != f"Missing information from {', '.join(missing)}." or not missing:
        fail(f"{key} delayed: error {document.get('error')!r} for missing {missing}")
    members = ["key", "error", *(name for name, version in zip(names, versions) if version is not None)]
    if list(document) != members or document["key"] != wanted["key"]:
        fail(f"{key} delayed: members {list(document)}, not {members}, or key {document.get('key')!r}")
    for name, version, allowed in zip(names, versions, wanted["versions"]):
        if version is not None and version not in allowed:
            fail(f"{key} {name} version {version} in the delay, not one of {allowed}")
    check_values(line, key, versions)

for key in expected_joined.keys() - joined.keys():
    fail(f"{key} is not joined")
for key, times in joined.items():
    if times > 1:
        fail(f"{key} is joined {times} times")
if args.delay:
    for key in expected_delayed.keys() - delayed.keys():
        fail(f"{key} is not delayed")
    for key, times in delayed.items():
        if times > 1:
            fail(f"{key} is delayed {times} times")
    for key in expected_joined:
        if (key in late) != (key in delayed):
            fail(f"{key}: marked late {key in late}, delayed before {key in delayed}")

dead = collections.Counter()
if args.dead:
    bad_reasons = {reason for reasons in answer["totals"]["bad"].values() for reason in reasons}
    rest = collections.Counter()
    for side in sides:
        rest.update((side["topic"], line) for line in input_lines(side["topic"]))
    for line in lines(args.dead):
        letter = json.loads(line)
        if letter["reason"] not in bad_reasons:
            continue  # a good record that was dropped, such as a late one
        topic = letter.get("topic", letter.get("input"))
        dead[topic, letter["reason"]] += 1
        original = base64.b64decode(letter["value_base64"]) if "value_base64" in letter else letter["value"].encode()
        if rest[topic, original] == 0:
            fail(f"dead letter of {topic}: {original[:80]!r} is no line of the input, or stands twice")
        rest[topic, original] -= 1
    wanted_dead = collections.Counter()
    for topic, reasons in answer["totals"]["bad"].items():
        wanted_dead.update({(topic, reason): count for reason, count in reasons.items()})
    for which in sorted(dead.keys() | wanted_dead.keys()):
        if dead[which] != wanted_dead[which]:
            fail(f"dead letters of {which[0]} for {which[1]}: {dead[which]}, not {wanted_dead[which]}")

print(
    f"joined {joined.total() if hasattr(joined, 'total') else sum(joined.values())} of {len(expected_joined)} expected, "
    f"{len(late)} late; delayed {sum(delayed.values())}, expected {len(expected_delayed)} and the late ones; "
    f"dead letters {sum(dead.values())}; failures {failures}"
)
for problem in problems:
    print("  " + problem)
print("CHECK", "OK" if failures == 0 else "FAILED")
sys.exit(0 if failures == 0 else 1)
