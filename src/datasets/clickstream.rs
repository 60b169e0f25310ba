//! The events of the RocketMQ and HBase article: what the users of an app did, written to the topic `calendar` with the
//! fields `uid`, `eventtype`, `dateline`, `data` (JSON in a text) and `updatetime` (seconds); and the receipts of the
//! table that stores them in a cell `f:QUALIFIER` of the row of a user's day.

use std::fmt::Write as _;

use super::line::{Line, civil};
use super::options::Options;
use super::random::{Random, mix};
use super::shape::{Answer, Record, Shape, Topic, Writer};

pub(super) struct Clickstream;

impl Shape for Clickstream {
    fn name(&self) -> &'static str {
        "clickstream"
    }

    fn about(&self) -> &'static str {
        "user events of the RocketMQ/HBase article and the receipts of their table: keys are numbers"
    }

    fn topics(&self) -> &'static [Topic] {
        &[
            Topic { name: "calendar", keys: &["uid", "dateline", "eventtype"], timestamp: "timestamp", version: "seq" },
            Topic {
                name: "receipts",
                keys: &["row.0", "row.1", "cell.eventtype"],
                timestamp: "timestamp",
                version: "seq",
            },
        ]
    }

    fn answers(&self) -> &'static [Answer] {
        &[Answer { folder: "expected", topics: &[0, 1] }]
    }

    fn payload(&self) -> usize {
        80
    }

    fn has_ambiguous_keys(&self) -> bool {
        false
    }

    fn writer(&self, options: &Options) -> Box<dyn Writer> {
        Box::new(App { data_bytes: options.payload, data: String::new() })
    }
}

const KINDS: [(&str, &str); 5] =
    [("mood", "m"), ("weight", "w"), ("note", "n"), ("sleep", "s"), ("medicine \u{1f48a}", "d")];
/// As they stand between the quotes of a JSON string.
const NOTES: [&str; 6] = ["up early", "long walk", "早起き", r#"naïve \"plan\""#, r"C:\\home", r"tea\tand cake"];

struct App {
    data_bytes: usize,
    data: String,
}

impl Writer for App {
    fn write(&mut self, record: &Record, line: &mut Line<'_>) {
        let kind = record.key as usize % KINDS.len();
        let uid = 10_000_000 + record.key / KINDS.len() as u64;
        let (year, month, day) = civil(record.base / 86_400_000);
        let dateline = year * 10_000 + month * 100 + day;
        line.number("seq", record.version);
        if record.topic == 0 {
            line.key_number("uid", uid);
            line.key_number("dateline", dateline);
            line.key_number("eventtype", kind as u64 + 1);
            let mut random = Random::new(mix(record.hash ^ record.version));
            self.data.clear();
            // Writing to a String cannot fail.
            let _ = write!(self.data, "{{\"kind\":\"{}\",\"value\":{}.50", KINDS[kind].0, random.below(100));
            while self.data.len() < self.data_bytes {
                let note = random.pick(&NOTES);
                let _ = write!(self.data, ",\"note\":\"{note}\"");
            }
            self.data.push('}');
            line.text("data", &self.data);
            line.number("updatetime", record.time / 1_000);
            line.time_number("timestamp", record.time);
        } else {
            line.time_number("timestamp", record.time);
            line.open_array("row");
            line.key_element(uid);
            line.key_element(dateline);
            line.close_array();
            line.open("cell");
            line.text("family", "f");
            line.text("qualifier", KINDS[kind].1);
            line.key_number("eventtype", kind as u64 + 1);
            line.close();
            line.number("region", record.hash % 16);
        }
    }
}
