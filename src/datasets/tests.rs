//! What the options promise, and that the expected answer is right or refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::line::Fault;
use super::*;

fn call(line: &str) -> Result<String> {
    let args: Vec<String> = line.split_whitespace().map(String::from).collect();
    let mut out = vec![];
    run(&args, &mut out)?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

fn make_in(dir: &Path, name: &str, options: &str) -> Result<String> {
    call(&format!("make {name} {options} --out {}", dir.display()))
}

fn problems(line: &str) -> Vec<String> {
    match call(line) {
        Err(error) if error.kind() == ErrorKind::Config => error.to_string().lines().map(String::from).collect(),
        other => panic!("{line}: {other:?}"),
    }
}

/// Lines of the files of a folder, by file name.
fn lines(dir: &Path) -> BTreeMap<String, Vec<String>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        let text = String::from_utf8_lossy(&fs::read(entry.path()).unwrap()).into_owned();
        files.insert(entry.file_name().to_string_lossy().into_owned(), text.lines().map(String::from).collect());
    }
    files
}

#[test]
fn every_problem_is_told_at_once_with_a_fix() {
    assert_eq!(
        problems("make fastn --recods 5 --seed x --bad 1.5 --window soon --rate 0 --payload"),
        [
            "--recods is not an option of datasets make; did you mean --records?",
            "--payload needs a value: --payload BYTES",
            "dataset \"fastn\" is unknown; did you mean fasten? known are fasten, orders, clickstream, telemetry",
            "--seed \"x\" is not a whole number, at most 18446744073709551615",
            "--bad \"1.5\" is not a share from 0 to 1, such as 0.05",
            "--window \"soon\" is not a duration, such as 250ms, 10s, 3m or PT3M",
            "--rate \"0\" is not a number from 0.001 to 1000000",
            "--out is missing: --out DIR, the folder that gets the files",
        ]
    );
    assert_eq!(problems("make --out x")[0], "which dataset? one of fasten, orders, clickstream, telemetry");
    assert_eq!(problems("make orders fasten --out x"), ["one dataset at a time: fasten is too much"]);
    assert_eq!(problems("make orders --out=x --out y"), ["--out is given twice"]);
    assert_eq!(problems("list all"), ["datasets list takes no arguments: all is too much"]);
    assert_eq!(problems("lst")[0], "datasets \"lst\" is unknown; did you mean list?");
    assert!(problems("")[0].starts_with("datasets: list or make?"));
}

#[test]
fn contradictions_are_refused() {
    let window = problems("make orders --out x --window 60s --ambiguous 0.1 --unmatched 0.4");
    assert_eq!(window.len(), 3, "{window:?}");
    assert!(window[0].starts_with("--gap 120000ms and --disorder 10000ms together must stay below two thirds"));
    assert!(window[1].starts_with("--unmatched 0.4 for each of 3 topics"));
    assert!(window[2].starts_with("--ambiguous: keys of orders"));
    let disorder = problems("make orders --out x --window 60s --gap 1s --disorder 20s");
    assert!(disorder[0].starts_with("--disorder 20000ms plus one second"), "{disorder:?}");
}

#[test]
fn list_names_every_shape_and_topic() {
    let text = call("list").unwrap();
    for shape in shape::ALL {
        assert!(text.contains(shape.name()) && shape.topics().iter().all(|topic| text.contains(topic.name)));
    }
    assert!(call("make --help").unwrap().contains("--disorder DUR"));
}

#[test]
fn the_seed_decides_every_byte() {
    let scratch = tempfile::tempdir().unwrap();
    for shape in shape::ALL {
        let made = |folder: &str, seed: u32| {
            let dir = scratch.path().join(shape.name()).join(folder);
            make_in(&dir, shape.name(), &format!("--records 300 --bad 0.1 --late 0.1 --seed {seed}")).unwrap();
            lines(&dir)
        };
        let one = made("one", 1);
        assert_eq!(one, made("again", 1));
        assert_ne!(one, made("two", 2));
        assert_eq!(one.values().map(Vec::len).sum::<usize>(), 300);
    }
}

#[test]
fn files_of_another_run_are_not_mixed_in() {
    let scratch = tempfile::tempdir().unwrap();
    make_in(scratch.path(), "orders", "--records 10 --partitions 3").unwrap();
    let error = make_in(scratch.path(), "orders", "--records 10").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("already: choose another --out"), "{error}");
}

#[test]
fn times_are_never_behind_by_more_than_the_disorder() {
    let scratch = tempfile::tempdir().unwrap();
    make_in(scratch.path(), "orders", "--keys 2000 --partitions 2 --disorder 7s --late 0.05").unwrap();
    let mut behind = 0;
    for (_, lines) in lines(scratch.path()) {
        let mut newest = 0;
        for line in lines {
            let time = serde_json::from_str::<Value>(&line).unwrap()["timestamp"].as_u64().unwrap();
            newest = newest.max(time);
            behind = behind.max(newest - time);
        }
    }
    assert!((3_000..7_000).contains(&behind), "{behind} ms");
}

#[test]
fn every_fault_is_counted_under_its_reason() {
    let scratch = tempfile::tempdir().unwrap();
    for shape in shape::ALL {
        let dir = scratch.path().join(shape.name());
        // Every record is followed by a bad line, and each round of faults moves on to the next key field.
        make_in(&dir, shape.name(), "--keys 132 --bad 1 --unmatched 0 --duplicates 0").unwrap();
        let text = fs::read_to_string(dir.join("expected/answer.json")).unwrap();
        let answer: Value = serde_json::from_str(&text).unwrap();
        let mut counted: BTreeMap<String, u64> = BTreeMap::new();
        for reasons in answer["totals"]["bad"].as_object().unwrap().values() {
            for (reason, count) in reasons.as_object().unwrap() {
                *counted.entry(reason.clone()).or_default() += count.as_u64().unwrap();
            }
        }
        let mut wanted: BTreeMap<String, u64> = BTreeMap::new();
        let bad = 132 * shape.topics().len();
        for fault in Fault::ALL.iter().cycle().take(bad) {
            *wanted.entry(fault.reason().into()).or_default() += 1;
        }
        assert_eq!(counted, wanted, "{}", shape.name());
        assert_eq!((&answer["totals"]["joined"], &answer["totals"]["delayed"]), (&132.into(), &0.into()));
    }
}

#[test]
fn hot_keys_get_their_share_of_the_duplicates() {
    let scratch = tempfile::tempdir().unwrap();
    make_in(scratch.path(), "orders", "--keys 1000 --duplicates 0.1 --skew 0.5 --unmatched 0").unwrap();
    let of_hot = |lines: &[String]| lines.iter().filter(|line| line.contains("ORD-00000000\"")).count();
    let per_topic: Vec<usize> = lines(scratch.path()).values().map(|lines| of_hot(lines)).collect();
    assert_eq!(per_topic.len(), 3);
    assert!(per_topic.iter().all(|hot| (51..=52).contains(hot)), "{per_topic:?}");
}

#[test]
fn ambiguous_keys_share_their_printed_form() {
    let scratch = tempfile::tempdir().unwrap();
    make_in(scratch.path(), "fasten", "--keys 200 --ambiguous 0.5 --unmatched 0").unwrap();
    let text = fs::read_to_string(scratch.path().join("expected/joined.jsonl")).unwrap();
    let keys: Vec<Value> =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["key"].clone()).collect();
    let distinct: std::collections::BTreeSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    assert_eq!(keys.len(), 200);
    assert!((130..170).contains(&distinct.len()), "{}", distinct.len());
}

/// The answer for two topics with the given (topic, key, time) lines; versions count up over both.
fn answer_of(records: &[(&str, &str, u64)]) -> Result<(Totals, String)> {
    let scratch = tempfile::tempdir().unwrap();
    let mut files: BTreeMap<&str, String> = BTreeMap::new();
    for (version, (file, key, time)) in records.iter().enumerate() {
        *files.entry(file).or_default() += &format!("{{\"k\":\"{key}\",\"t\":{time},\"n\":{version}}}\n");
    }
    for (file, text) in files {
        fs::write(scratch.path().join(format!("{file}.jsonl")), text).unwrap();
    }
    let side =
        |topic: &str| Side { topic: topic.into(), keys: vec!["k".into()], timestamp: "t".into(), version: "n".into() };
    let question = Question { sides: vec![side("a"), side("b")], window_ms: 100, disorder_ms: 10, remember_ms: 1_000 };
    let totals = answer(scratch.path(), &question, &scratch.path().join("expected"))?;
    let read = |name: &str| fs::read_to_string(scratch.path().join("expected").join(name)).unwrap();
    Ok((totals, read("joined.jsonl") + &read("delayed.jsonl")))
}

#[test]
fn the_answer_is_the_one_of_the_rules_or_none() {
    let (totals, text) = answer_of(&[
        ("a", "x", 1_000),
        ("a-p1", "y", 1_000),
        ("b", "x", 1_089),
        ("b", "y", 1_090),
        ("a", "z", 1_000),
        ("a", "z", 990),
        ("ab", "x", 0), // a file of another topic
    ])
    .unwrap();
    assert_eq!((totals.records, totals.joined, totals.maybe_late, totals.delayed), (6, 2, 1, 1));
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        [
            r#"{"fields":["x"],"key":"x","versions":[[0],[2]]}"#,
            r#"{"fields":["y"],"key":"y","maybe_late":true,"versions":[[1],[3]]}"#,
            r#"{"fields":["z"],"key":"z","missing":["b"],"versions":[[5],[]]}"#,
        ]
    );
    let refused = |records: &[(&str, &str, u64)]| answer_of(records).unwrap_err().to_string();
    let forgotten = refused(&[("a", "x", 0), ("b", "x", 1_001)]);
    assert_eq!(
        forgotten,
        "key [\"x\"]: its records are further apart than the job remembers, so the answer depends on the interleaving"
    );
    let two_files = refused(&[("a", "x", 0), ("a-p1", "x", 5)]);
    assert!(two_files.contains("several files of a topic"), "{two_files}");
}
