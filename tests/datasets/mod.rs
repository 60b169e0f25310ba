//! The bundled datasets: that their commands make them byte for byte, that their page is true, and that the two scripts
//! that judge a job accept a right output and refuse every kind of wrong one.
//!
//! Would catch: a generator that changed, a data file that was edited, a checker that accepts anything.

mod answers;
mod interleavings;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use syncline::datasets::{BUNDLED, run};
use syncline::message::Reason;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Paths below `dir` and contents of all files in it.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.insert(path.strip_prefix(dir).unwrap().to_path_buf(), fs::read(&path).unwrap());
            }
        }
    }
    files
}

fn make(command: &str, out: &Path) -> String {
    let mut args: Vec<String> = command.split_whitespace().map(String::from).collect();
    args.extend(["--out".into(), out.to_str().unwrap().into()]);
    let mut text = vec![];
    run(&args, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn name(command: &str) -> &str {
    command.split_whitespace().nth(1).unwrap()
}

#[test]
fn bundled_sets_are_what_their_commands_make() {
    let scratch = tempfile::tempdir().unwrap();
    for command in BUNDLED {
        let made = scratch.path().join(name(command));
        make(command, &made);
        let (made, bundled) = (tree(&made), tree(&root().join("datasets").join(name(command))));
        assert_eq!(made.keys().collect::<Vec<_>>(), bundled.keys().collect::<Vec<_>>(), "files of {command}");
        for (path, bytes) in &made {
            assert!(
                bundled[path] == *bytes,
                "datasets/{}/{} is not what its command makes",
                name(command),
                path.display()
            );
        }
    }
}

#[test]
fn the_page_of_the_datasets_is_true() {
    let dir = root().join("datasets");
    let page = fs::read_to_string(dir.join("README.md")).unwrap();
    let words = |text: &str| text.replace("\\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ");
    for command in BUNDLED {
        let stated = format!("syncline datasets {} --out datasets/{}", words(command), name(command));
        assert!(words(&page).contains(&stated), "datasets/README.md does not state: {stated}");
    }
    let files: BTreeMap<_, _> = (tree(&dir).into_iter()).filter(|(path, _)| path.components().count() > 1).collect();
    assert!(files.values().map(Vec::len).sum::<usize>() < 5_000_000, "the bundled sets are below 5 MB");
    let sums = fs::read_to_string(dir.join("SHA256SUMS")).unwrap();
    let listed: BTreeSet<PathBuf> = sums.lines().map(|line| PathBuf::from(line.split_once("  ").unwrap().1)).collect();
    assert_eq!(listed, files.keys().cloned().collect(), "files of SHA256SUMS");
    for (path, bytes) in files.iter().filter(|(path, _)| path.components().count() == 2) {
        let row = format!("`{}` | {}", path.file_name().unwrap().to_str().unwrap(), bytes.len());
        assert!(page.contains(&row), "datasets/README.md does not state: {row}");
    }
    if cfg!(target_os = "linux") {
        let checked =
            Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(&dir).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    }
}

#[test]
fn bad_lines_of_every_kind_are_bundled() {
    let answer = fs::read(root().join("datasets/fasten/expected/answer.json")).unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    let reasons: BTreeSet<&String> = (answer["totals"]["bad"].as_object().unwrap().values())
        .flat_map(|reasons| reasons.as_object().unwrap().keys())
        .collect();
    let wanted = [
        "invalid_json",
        "invalid_timestamp",
        "invalid_utf8",
        "key_ambiguous",
        "key_missing",
        "key_not_scalar",
        "key_null",
        "not_an_object",
    ];
    assert_eq!(reasons.into_iter().collect::<Vec<_>>(), wanted);
    let known = |name| Reason::ALL.iter().any(|reason| reason.name() == name);
    assert!(wanted.into_iter().all(known), "the reasons have the names that a job gives them");
}

/// What a job writes: lines of each output, and its counts by the names of the conservation line.
#[derive(Clone, Default)]
struct Outcome {
    joined: Vec<String>,
    delay: Vec<String>,
    dead: Vec<String>,
    counts: BTreeMap<String, u64>,
}

/// The plainest job on the fasten set: everything in order of event time, one map.
fn plain_job(dir: &Path) -> Outcome {
    const SIDES: [&str; 2] = ["fasten.callgraph.out", "fasten.metadata.out"];
    const COORDINATES: [&str; 2] = ["/input/input", "/input/input/input"];
    const WINDOW: u64 = 60_000;
    let mut outcome = Outcome::default();
    let mut records: Vec<(u64, usize, String, String)> = vec![];
    let mut total = 0;
    for (path, bytes) in tree(dir) {
        let Some(side) = SIDES.iter().position(|side| path.to_str().unwrap().starts_with(side)) else { continue };
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            total += 1;
            match classify(line, COORDINATES[side]) {
                Ok((time, key)) => records.push((time, side, key, String::from_utf8(line.to_vec()).unwrap())),
                Err(reason) => {
                    *outcome.counts.entry(format!("dropped.{reason}")).or_default() += 1;
                    let mut letter = json!({"error": "", "reason": reason, "topic": SIDES[side]});
                    match std::str::from_utf8(line) {
                        Ok(text) => letter["value"] = text.into(),
                        Err(_) => letter["value_base64"] = base64(line).into(),
                    }
                    outcome.dead.push(letter.to_string());
                }
            }
        }
    }
    records.sort();
    let printed = |key: &str| serde_json::from_str::<Vec<String>>(key).unwrap().join(":");
    let mut waiting: HashMap<String, (u64, [Option<String>; 2], bool)> = HashMap::new();
    let mut done: BTreeSet<String> = BTreeSet::new();
    records.push((u64::MAX, 0, String::new(), String::new())); // after it, every deadline has passed
    for (now, side, key, line) in records {
        for (key, (deadline, slots, delayed)) in &mut waiting {
            if *deadline < now && !*delayed {
                *delayed = true;
                let (present, missing) = if slots[0].is_some() { (0, 1) } else { (1, 0) };
                let (key, value) = (printed(key), slots[present].as_ref().unwrap());
                outcome.delay.push(format!(
                    "{{\"key\":\"{key}\",\"error\":\"Missing information from {}.\",\"{}\":{value}}}",
                    SIDES[missing], SIDES[present]
                ));
            }
        }
        let count = |counts: &mut BTreeMap<String, u64>, name: &str| *counts.entry(name.into()).or_default() += 1;
        if key.is_empty() {
            break;
        }
        if done.contains(&key) {
            count(&mut outcome.counts, "dropped.duplicate");
            continue;
        }
        let (deadline, slots, delayed) = waiting.entry(key.clone()).or_insert((0, [None, None], false));
        *deadline = now + WINDOW;
        if slots[side].replace(line).is_some() {
            count(&mut outcome.counts, "dropped.overridden");
        }
        if let [Some(one), Some(two)] = slots {
            let late = if *delayed { ",\"late\":true" } else { "" };
            let text = printed(&key);
            outcome.joined.push(format!("{{\"key\":\"{text}\",\"{}\":{one},\"{}\":{two}{late}}}", SIDES[0], SIDES[1]));
            if *delayed {
                count(&mut outcome.counts, "late");
            }
            waiting.remove(&key);
            done.insert(key);
        }
    }
    let counts = &mut outcome.counts;
    let dropped = counts.iter().filter(|(name, _)| name.starts_with("dropped.")).map(|(_, count)| count).sum();
    counts.entry("late".into()).or_default();
    counts.insert("dropped".into(), dropped);
    counts.insert("in".into(), total);
    counts.insert("joined".into(), outcome.joined.len() as u64);
    counts.insert("joined_records".into(), 2 * outcome.joined.len() as u64);
    counts.insert("delayed".into(), outcome.delay.len() as u64);
    counts.insert("expired".into(), waiting.len() as u64);
    for name in ["restored", "pending", "unmatched", "difference"] {
        counts.insert(name.into(), 0);
    }
    outcome
}

fn classify(line: &[u8], coordinate: &str) -> Result<(u64, String), &'static str> {
    let text = std::str::from_utf8(line).map_err(|_| "invalid_utf8")?;
    let value: Value = serde_json::from_str(text).map_err(|_| "invalid_json")?;
    if !value.is_object() {
        return Err("not_an_object");
    }
    if text.contains(":\"first\",") {
        return Err("key_ambiguous"); // how the generator writes a member twice
    }
    let mut fields = vec![];
    for field in ["groupId", "artifactId", "version"] {
        fields.push(match value.pointer(&format!("{coordinate}/{field}")) {
            None => return Err("key_missing"),
            Some(Value::Null) => return Err("key_null"),
            Some(Value::String(text)) => text.clone(),
            Some(_) => return Err("key_not_scalar"),
        });
    }
    let time = value["timestamp"].as_u64().ok_or("invalid_timestamp")?;
    Ok((time, serde_json::to_string(&fields).unwrap()))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | usize::from(group.get(at).copied().unwrap_or(0)));
        for digit in 0..4 {
            text.push(if digit > group.len() { '=' } else { DIGITS[bits >> (18 - 6 * digit) & 63].into() });
        }
    }
    text
}

/// Whether each of the two scripts is content with an outcome, and what they said.
fn judge(outcome: &Outcome, dir: &Path) -> (bool, bool, String) {
    let scratch = tempfile::tempdir().unwrap();
    let place = |name: &str| scratch.path().join(name).to_str().unwrap().to_string();
    let line: Vec<String> = outcome.counts.iter().map(|(name, count)| format!("{name}={count}")).collect();
    fs::write(place("log"), format!("started\n12:00 conservation: {}\n", line.join(" "))).unwrap();
    for (name, lines) in [("joined", &outcome.joined), ("delay", &outcome.delay), ("dead", &outcome.dead)] {
        fs::write(place(name), lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    }
    let outputs =
        ["--joined", &place("joined"), "--delay", &place("delay"), "--dead", &place("dead")].map(String::from);
    let python = |script: &str, args: &[String]| {
        let script = root().join("tests").join(script);
        let result = Command::new("python3").arg(script).args(args).args(&outputs).output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&result.stdout), String::from_utf8_lossy(&result.stderr));
        (result.status.success(), text)
    };
    let dir = dir.to_str().unwrap();
    let (answered, one) = python("check_answer.py", &[format!("{dir}/expected")]);
    let (conserved, two) =
        python("conservation.py", &["--log".into(), place("log"), "--in".into(), format!("{dir}/fasten.*.jsonl")]);
    (answered, conserved, one + &two)
}

#[test]
fn the_scripts_accept_a_right_output_and_refuse_wrong_ones() {
    let dir = root().join("datasets/fasten");
    let right = plain_job(&dir);
    let (answered, conserved, text) = judge(&right, &dir);
    assert!(answered && conserved, "{text}");
    assert!(
        right.counts["late"] > 0 && right.counts["dropped.overridden"] > 0 && right.counts["dropped.duplicate"] > 0
    );

    type Harm = fn(&mut Outcome);
    // What is wrong, and which of the two scripts has to see it.
    let harms: [(&str, bool, bool, Harm); 9] = [
        ("a joined document is lost", true, true, |o| drop(o.joined.pop())),
        ("a joined document stands twice", true, true, |o| o.joined.push(o.joined[0].clone())),
        ("a delay document is lost", true, true, |o| drop(o.delay.pop())),
        ("a dead letter is lost", true, true, |o| drop(o.dead.pop())),
        ("a value has changed", true, false, |o| o.joined[7] = o.joined[7].replace("\"mvn\"", "\"Mvn\"")),
        ("a late mark is lost", true, true, |o| {
            let late = o.joined.iter_mut().find(|line| line.contains(",\"late\":true}")).unwrap();
            *late = late.replace(",\"late\":true}", "}");
        }),
        ("two documents have swapped sides", true, false, |o| {
            let cut = |line: &str| line.find(",\"fasten.metadata.out\"").unwrap();
            let (one, two) = (o.joined[3].clone(), o.joined[4].clone());
            o.joined[3] = format!("{}{}", &one[..cut(&one)], &two[cut(&two)..]);
            o.joined[4] = format!("{}{}", &two[..cut(&two)], &one[cut(&one)..]);
        }),
        ("one record is not counted", false, true, |o| *o.counts.get_mut("in").unwrap() -= 1),
        ("a drop is counted as an expiry", false, true, |o| {
            for (name, by) in [("dropped", -1), ("dropped.duplicate", -1), ("expired", 1)] {
                let count = o.counts.get_mut(name).unwrap();
                *count = count.checked_add_signed(by).unwrap();
            }
        }),
    ];
    for (what, answer, conservation, harm) in harms {
        let mut wrong = right.clone();
        harm(&mut wrong);
        let (answered, conserved, text) = judge(&wrong, &dir);
        assert_eq!((answered, conserved), (!answer, !conservation), "{what}:\n{text}");
    }
}
