#!/usr/bin/env python3
"""Counts the records of a finished job again, from the files it read and wrote, and compares with what it printed.

usage: conservation.py --log FILE --in GLOB... --joined GLOB... [--delay GLOB...] [--dead GLOB...] [--sides N]

--log   the job's output ("-": standard input); its last line with "conservation:" counts
--in    input files (.jsonl, .jsonl.gz)         --joined, --delay, --dead   output files; no match is an empty output
--sides how many sides a key has (2)

The line: conservation: in=N restored=N joined_records=N expired=N pending=N dropped=N [dropped.REASON=N]...
          joined=N late=N delayed=N unmatched=N difference=0

Needs nothing but Python 3.9. It uses no code of the job, and no code that made the data. Whatever can be counted in files
is compared with the line: records in, joined documents, late ones, records inside them, delay documents, dead letters by
reason. Where files alone decide it (no restored and no pending records, delays written, two sides) so are the records
that expired and those that were dropped as duplicate, overridden or late. Exit 0 if everything agrees, else 1.
"""
import argparse
import collections
import glob
import gzip
import json
import re
import sys

# What a message can be dropped for before it is a record: with a dead-letter topic each of these is in it.
BAD = (
    "tombstone invalid_utf8 invalid_json schema_framed not_an_object key_missing key_null key_not_scalar "
    "key_ambiguous invalid_timestamp undecodable"
).split()
# What a record can be dropped for.
LEFT_OVER = ("duplicate", "overridden", "late")

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--log", required=True)
parser.add_argument("--in", dest="inputs", nargs="+", action="extend", required=True)
parser.add_argument("--joined", nargs="+", action="extend", required=True)
parser.add_argument("--delay", nargs="+", action="extend", default=[])
parser.add_argument("--dead", nargs="+", action="extend", default=[])
parser.add_argument("--sides", type=int, default=2)
args = parser.parse_args()

failures = []


def equal(what, counted, printed):
    if counted != printed:
        failures.append(f"{what}: {counted} in the files, {printed} in the job's line")


def lines(patterns):
    paths = {path for pattern in patterns for path in glob.glob(pattern, recursive=True)}
    for path in sorted(paths):
        with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
            for line in file:
                if line.strip(b"\r\n"):
                    yield line


def conservation_line():
    with sys.stdin if args.log == "-" else open(args.log, encoding="utf-8", errors="replace") as log:
        found = [line.split("conservation:", 1)[1] for line in log if "conservation:" in line]
    if not found:
        sys.exit("conservation.py: the log has no line with 'conservation:'")
    printed = {name: int(value) for name, value in re.findall(r"([a-z_0-9.]+)=(-?\d+)", found[-1])}
    wanted = "in restored joined_records expired pending dropped joined late delayed unmatched difference".split()
    missing = [name for name in wanted if name not in printed]
    if missing:
        sys.exit(f"conservation.py: the line lacks {', '.join(missing)}: {found[-1].strip()}")
    return printed


printed = conservation_line()
reasons = {name[len("dropped.") :]: value for name, value in printed.items() if name.startswith("dropped.")}
unknown = reasons.keys() - {*BAD, *LEFT_OVER}
if unknown:
    failures.append(f"dropped for reasons that are not known: {sorted(unknown)}")

# The line by itself.
equal("sum of the reasons", sum(reasons.values()), printed["dropped"])
left = printed["in"] + printed["restored"]
right = sum(printed[name] for name in ("joined_records", "expired", "pending", "dropped"))
if left - right != printed["difference"] or printed["difference"] != 0:
    failures.append(f"in + restored = {left}, joined + expired + pending + dropped = {right}, difference={printed['difference']}")

# The line against the files.
records_in = sum(1 for _ in lines(args.inputs))
joined = late = joined_records = 0
completed = collections.Counter()
for line in lines(args.joined):
    document = json.loads(line)
    sides = len(document.keys() - {"key", "late"})
    if sides != args.sides:
        failures.append(f"joined document of {document.get('key')!r} has {sides} sides, not {args.sides}")
    joined += 1
    joined_records += sides
    if document.get("late") is True:
        late += 1
        completed[document["key"]] += 1
delayed = waiting_at_delay = 0
for line in lines(args.delay):
    document = json.loads(line)
    delayed += 1
    if completed[document["key"]] > 0:
        completed[document["key"]] -= 1  # its records are in the late join
    else:
        waiting_at_delay += len(document.keys() - {"key", "error"})
dead = collections.Counter(json.loads(line)["reason"] for line in lines(args.dead))

equal("records in", records_in, printed["in"])
equal("joined documents", joined, printed["joined"])
equal("late joined documents", late, printed["late"])
equal("records in joined documents", joined_records, printed["joined_records"])
if args.delay:
    equal("delay documents", delayed, printed["delayed"])
    for key, times in completed.items():
        if times > 0:
            failures.append(f"{key!r} is joined late {times} times more often than it was delayed")
for reason in BAD if args.dead else ():
    equal(f"dead letters for {reason}", dead[reason], reasons.get(reason, 0))
for reason in LEFT_OVER:
    if dead[reason] > reasons.get(reason, 0):
        failures.append(f"dead letters for {reason}: {dead[reason]}, more than were dropped: {reasons.get(reason, 0)}")
decided = printed["restored"] == 0 and printed["pending"] == 0 and printed["unmatched"] == 0 and bool(args.delay)
if decided and args.sides == 2:
    equal("records that expired", waiting_at_delay, printed["expired"])
elif decided and printed["expired"] < waiting_at_delay:
    failures.append(f"records that expired: at least {waiting_at_delay} in the files, {printed['expired']} in the job's line")
if decided and args.sides == 2:
    bad = sum(dead[reason] for reason in BAD) if args.dead else sum(reasons.get(reason, 0) for reason in BAD)
    counted = records_in - joined_records - waiting_at_delay - bad
    equal("records dropped as duplicate, overridden or late", counted, sum(reasons.get(r, 0) for r in LEFT_OVER))

print(
    f"counted: in={records_in} joined={joined} late={late} joined_records={joined_records} delayed={delayed} "
    f"dead_letters={sum(dead.values())}"
)
for failure in failures:
    print("  " + failure)
print("CONSERVATION", "OK" if not failures else "FAILED")
sys.exit(0 if not failures else 1)
