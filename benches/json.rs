//! Extraction of key and timestamp from records of the FASTEN shape, against serde_json into borrowed structs.
//!
//! `cargo bench --bench json`; `-- --smoke` only looks whether both find the same. The extractor is serde_json too, along paths that
//! are known at run time only; beyond the structs it checks UTF-8 in the whole record, finds duplicate members and keeps the text of
//! numbers. The ratio is what that costs.

use std::borrow::Cow;
use std::hint::black_box;
use std::time::Instant;

use serde::Deserialize;
use syncline::sync::json::{Extractor, KeySink, Path};

const RECORDS: usize = 200_000;
const ROUNDS: usize = 7;

#[derive(Deserialize)]
#[allow(non_snake_case)]
struct Coordinate<'a> {
    #[serde(borrow)]
    groupId: Cow<'a, str>,
    #[serde(borrow)]
    artifactId: Cow<'a, str>,
    #[serde(borrow)]
    version: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Inner<'a> {
    #[serde(borrow)]
    input: Coordinate<'a>,
}

#[derive(Deserialize)]
struct Record<'a> {
    timestamp: u64,
    #[serde(borrow)]
    input: Inner<'a>,
}

/// Adds up lengths, so that neither side is measured with the building of a key.
#[derive(Default)]
struct Length(usize);

impl KeySink for Length {
    fn text(&mut self, text: &str) {
        self.0 += text.len();
    }
    fn number(&mut self, number: &str) {
        self.0 += number.len();
    }
    fn boolean(&mut self, _boolean: bool) {
        self.0 += 1;
    }
}

/// About 580 bytes.
fn record(number: usize) -> String {
    let dependency = |n: usize| {
        format!(
            r#"{{"versionConstraints":[{{"isUpperHardRequirement":false,"isLowerHardRequirement":false,"upperBound":"{}.{}.0"}}],"groupId":"org.server.g{n}","scope":"","artifactId":"model-client-{n}","optional":true}}"#,
            n & 7,
            n & 15,
        )
    };
    format!(
        r#"{{"timestamp":{},"input":{{"input":{{"groupId":"org.example.g{}","artifactId":"artifact-{number}","version":"{}.{}.1"}},"plugin":"callgraph"}},"payload":{{"seq":{number},"forge":"mvn","dependencies":[{},{}]}},"plugin":"syn"}}"#,
        1_600_000_000_000 + number,
        number % 1000,
        number & 7,
        number & 31,
        dependency(number % 4096),
        dependency(number * 7 % 4096),
    )
}

fn main() {
    let smoke = std::env::args().any(|arg| arg == "--smoke");
    let (count, rounds) = if smoke { (1_000, 1) } else { (RECORDS, ROUNDS) };
    let records: Vec<String> = (0..count).map(record).collect();
    let bytes: usize = records.iter().map(String::len).sum();
    let keys = Path::list("input.input.groupId,input.input.artifactId,input.input.version").expect("paths");
    let extractor = Extractor::new(&keys, Some(&"timestamp".parse().expect("a path"))).expect("an extractor");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = Instant::now();
        let mut length = Length::default();
        for record in &records {
            black_box(extractor.extract(record.as_bytes(), &mut length).expect("a good record"));
        }
        let found = black_box(length.0);
        ours.push(bytes as f64 / start.elapsed().as_secs_f64() / 1e6);

        let start = Instant::now();
        let mut length = 0;
        for record in &records {
            let record: Record<'_> = serde_json::from_slice(record.as_bytes()).expect("a good record");
            let key = &record.input.input;
            length += key.groupId.len() + key.artifactId.len() + key.version.len();
            black_box(record.timestamp);
        }
        assert_eq!(black_box(length), found, "the two find different keys");
        theirs.push(bytes as f64 / start.elapsed().as_secs_f64() / 1e6);
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let (ours, theirs) = (median(&mut ours), median(&mut theirs));
    println!(
        "json: {} bytes a record, extractor {ours:.0} MB/s, serde_json into structs {theirs:.0} MB/s, ratio {:.2}",
        bytes / count,
        ours / theirs
    );
}
