//! Who may import whom: the flow of data as a rule that is checked.
//!
//! What it would catch: timely leaking into contracts, an adapter that knows another one, a second reader of the clock, a
//! library that prints, files that nobody can read in one sitting.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Module, and which modules of the crate it may import beside itself. `*` is all. In the order of the flow.
const IMPORTS: [(&str, &str); 29] = [
    ("lib", "*"),
    ("main", "*"),
    ("error", ""),
    ("blocks", ""),
    ("crash", ""),
    ("item", ""),
    ("varint", ""),
    ("message", "error"),
    ("epoch", "error"),
    ("codec", "error message"),
    ("source", "error message"),
    ("sink", "epoch error item message"),
    ("checkpoint", "crash epoch error item message sink varint"),
    ("broker", "blocks checkpoint epoch error message sink source"),
    ("conformance", "epoch error message sink source"),
    ("control", "epoch error"),
    ("retry", "epoch error"),
    ("pacing", "epoch error"),
    ("split_time", "epoch error message source"),
    ("ledger", "epoch error message"),
    ("observe", "epoch error message sink"),
    ("reader", "codec commit control epoch error ledger message observe retry source split_time"),
    ("commit", "control epoch error ledger message observe reader retry source"),
    ("cluster", "control epoch error job"),
    (
        "dataflow",
        "blocks checkpoint codec commit control crash epoch error ledger message observe pacing reader retry sink source split_time varint",
    ),
    (
        "job",
        "checkpoint cluster codec commit control dataflow epoch error ledger message observe pacing reader retry sink source split_time",
    ),
    ("sync", "blocks checkpoint codec control dataflow epoch error job message observe sink source varint"),
    ("datasets", "error"),
    ("allocator", ""),
];

/// What `cli` may import is everything; nobody but `main` may import it.
const ABOVE_ALL: &str = "cli";

/// Crate, and where it may be named. The command line hands timely its arguments in one place.
const CRATES: [(&str, &[&str]); 9] = [
    ("timely", &["cluster/", "dataflow/", "sync/", "job.rs", "lib.rs", "cli/run.rs"]),
    ("differential_dataflow", &["dataflow/", "sync/", "checkpoint/compact", "job.rs", "lib.rs"]),
    ("rdkafka", &["broker/kafka/"]),
    ("regex_automata", &["broker/kafka/"]),
    ("object_store", &["checkpoint/object/"]),
    ("tokio", &["checkpoint/object/"]),
    ("futures_util", &["checkpoint/object/"]),
    ("sha2", &["checkpoint/object/"]),
    ("hmac", &["checkpoint/object/"]),
];

const MAX_LINES: usize = 500;

struct Source {
    /// Below `src/`.
    path: String,
    lines: usize,
    /// Without comments, and without the module of unit tests at the end.
    code: String,
}

impl Source {
    /// The first part of the path, without `.rs`.
    fn module(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    fn is_below(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut folders, mut found) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&entry).expect("text");
                let path = entry.strip_prefix(&root).expect("below src").to_string_lossy().replace('\\', "/");
                let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
                let code = if is_test { String::new() } else { code(&text) };
                found.push(Source { path, lines: text.lines().count(), code });
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    assert!(found.len() > 10, "these are too few files to be all");
    found
}

fn code(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let bare = |line: &str| match line.find("//") {
        // Two slashes in a URL stand behind a colon.
        Some(at) if !line[..at].ends_with(':') => line[..at].to_string(),
        _ => line.to_string(),
    };
    text[..end].lines().map(bare).collect::<Vec<_>>().join("\n")
}

/// Where a word stands, not as a part of a longer one.
fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part = |character: char| character.is_alphanumeric() || character == '_';
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| !code[..*at].ends_with(part) && !code[at + word.len()..].starts_with(part))
}

fn names(code: &str, word: &str) -> bool {
    words(code, word).next().is_some()
}

/// The modules of the crate that a file names: `crate::a::b`, and `crate::{a::b, c}`.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, start) in code.match_indices("crate::") {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &code[at + start.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            found.insert(first(rest));
            continue;
        };
        let (mut depth, mut begin) = (0, 0);
        for (at, character) in group.char_indices() {
            match character {
                '{' => depth += 1,
                ',' | '}' if depth == 0 => {
                    found.insert(first(group[begin..at].trim()));
                    begin = at + 1;
                }
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 && character == '}' && begin == at + 1 {
                break;
            }
        }
    }
    found.remove("");
    found
}

fn first(path: &str) -> String {
    let name: String = path.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    match name.as_str() {
        "Error" | "ErrorKind" | "Result" => "error".to_string(),
        "Job" => "job".to_string(),
        _ => name,
    }
}

fn refuse(broken: Vec<String>) {
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn modules_import_only_what_is_before_them() {
    let mut broken = Vec::new();
    for source in sources() {
        let module = source.module();
        if module == ABOVE_ALL {
            continue;
        }
        let Some((_, allowed)) = IMPORTS.iter().find(|(name, _)| *name == module) else {
            broken.push(format!("src/{}: module {module:?} has no line in the table of tests/layers.rs", source.path));
            continue;
        };
        for import in imports(&source.code) {
            if import != module && *allowed != "*" && !allowed.split(' ').any(|name| name == import) {
                broken.push(format!("src/{}: {module:?} may not import {import:?}", source.path));
            }
        }
    }
    refuse(broken);
}

#[test]
fn crates_stay_in_their_places() {
    let mut broken = Vec::new();
    for source in sources() {
        for (name, places) in CRATES {
            let path = format!("{name}::");
            if !source.is_below(places) && words(&source.code, name).any(|at| source.code[at..].starts_with(&path)) {
                broken.push(format!("src/{}: {name} belongs to {places:?}", source.path));
            }
        }
    }
    refuse(broken);
}

#[test]
fn adapters_know_no_other_adapter() {
    let all = sources();
    let adapter =
        |source: &Source| source.path.strip_prefix("broker/")?.split_once('/').map(|(name, _)| name.to_string());
    let adapters: BTreeSet<String> = all.iter().filter_map(adapter).collect();
    let mut broken = Vec::new();
    for source in &all {
        let Some(own) = adapter(source) else { continue };
        for other in adapters.iter().filter(|other| **other != own) {
            if ["broker::", "super::super::"].iter().any(|path| names(&source.code, &format!("{path}{other}"))) {
                broken.push(format!("src/{}: {own:?} may not know {other:?}", source.path));
            }
        }
    }
    refuse(broken);
}

#[test]
fn only_epoch_reads_the_clock() {
    let reads = |source: &&Source| ["SystemTime", "Instant"].iter().any(|word| names(&source.code, word));
    let all = sources();
    let others = all.iter().filter(|source| source.path != "epoch.rs").filter(reads);
    refuse(others.map(|source| format!("src/{}: time comes from crate::epoch::Clock", source.path)).collect());
}

#[test]
fn only_the_command_line_prints() {
    let prints = ["print!", "println!", "eprint!", "eprintln!", "dbg!"];
    let all = sources();
    let library = all.iter().filter(|source| !source.is_below(&["cli/", "cli.rs", "main.rs"]));
    let printing = library.filter(|source| {
        prints
            .iter()
            .any(|name| words(&source.code, &name[..name.len() - 1]).any(|at| source.code[at..].starts_with(name)))
    });
    refuse(printing.map(|source| format!("src/{}: a library does not print", source.path)).collect());
}

#[test]
fn files_can_be_read_in_one_sitting() {
    let all = sources();
    let long = all.iter().filter(|source| source.lines > MAX_LINES);
    refuse(long.map(|source| format!("src/{}: {} lines, at most {MAX_LINES}", source.path, source.lines)).collect());
}

#[test]
fn the_rules_see_what_they_should() {
    let text = "use crate::{epoch::Epoch, message::{Message, Offset}};\nuse crate::Error; // crate::sync\n\
                let url = \"kafka://a\"; crate::sink::f();\n#[cfg(test)]\nmod tests { use crate::cli; }";
    let code = code(text);
    assert!(code.contains("kafka://a") && !code.contains("cli"));
    assert_eq!(imports(&code).into_iter().collect::<Vec<_>>(), ["epoch", "error", "message", "sink"]);
    assert!(names("a Instant b", "Instant") && !names("Instantly", "Instant"));
}
